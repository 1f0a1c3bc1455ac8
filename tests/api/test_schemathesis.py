"""Generated requests for every operation of the OpenAPI document: each operation behaves as documented.

The document is made here from the same table that is served. test_whole_api.py proves that /openapi.json is the same document.
"""

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test

from holdfast import __version__
from holdfast.api.app import ROUTES
from holdfast.api.openapi import document
from served_api import Stage

load_all_checks()
BRIEF = 0.05  # seconds; `wait` is shortened to this, so that generated requests wait only briefly
CONFIG: dict[str, Any] = {
    "generation": {"deterministic": True, "max-examples": 5, "no-shrink": True},
    # Requests that the types allow may be refused too: a command on a pool that has one, a duration beyond a year.
    "checks": {
        "positive_data_acceptance": {"enabled": False},
        "negative_data_rejection": {"expected-statuses": ["400", "401", "403", "404", "405", "409", "413", "422"]},
    },
}
GENTLY = settings(
    max_examples=5,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


OPERATIONS = [(route.path, route.method) for route in ROUTES]
ORDINARY = [operation for operation in OPERATIONS if not operation[0].startswith("/v1/worker/")]
AGENTS = [operation for operation in OPERATIONS if operation[0].startswith("/v1/worker/")]


@cache
def described() -> Any:
    return schemathesis.openapi.from_dict(document(ROUTES, __version__), config=SchemathesisConfig.from_dict(CONFIG))


def generate(path: str, method: str, send: Callable[[Any], None]) -> None:
    """Generates requests for one operation and sends each. This happens in the test, because generating those of all operations
    while tests are collected takes seconds in every process."""

    @GENTLY
    def each(case: Any) -> None:
        send(case)

    config = HypothesisTestConfig(project=described().config, modes=list(HypothesisTestMode))
    create_test(operation=described()[path][method], test_func=each, config=config)()


turn = count()


@pytest.fixture
def lively(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Returns a stage with a claim in each state, so that generated requests find something."""
    monkeypatch.setattr("holdfast.api.claims.LONGEST_WAIT", BRIEF)
    for n in range(2):
        ended = stage.claim(key=f"ended-{n}")
        assert stage.ask("POST", f"/v1/claims/{ended['id']}/release", {"fence": ended["fence"]}).status == 200
        stage.claim(key=f"active-{n}")
    stage.claim(pool="agents", command=["true"], token="acme")
    stage.do(stage.spawn("p-direct", *(f"w-more-{n}" for n in range(4))))
    stage.wired.replica.beat_at = stage.loop.time() + 3600  # ready, although no duty runs here
    return stage


def real(stage: Stage, case: Any) -> None:
    """Makes every other request name something that exists, and follow only an output that ends."""
    if next(turn) % 2 or not case.path_parameters or not case.meta.generation.mode.is_positive:
        return
    claims = stage.ask("GET", "/v1/claims").json["items"]
    if case.path.startswith("/v1/claims/{id}/output"):
        claims = [claim for claim in claims if claim["state"] == "ended"]
    kinds = {
        "/v1/claims/": [claim["id"] for claim in claims],
        "/v1/pools/": ["direct", "agents"],
        "/v1/workers/": ["w-1", "w-agent"],
        "/v1/tenants/": ["acme"],
        "/v1/tokens/": ["t-admin", "t-rival"],
        "/v1/explain/": ["claim"],
    }
    names = next((names for start, names in kinds.items() if case.path.startswith(start)), None)
    if names:
        case.path_parameters[next(iter(case.path_parameters))] = names[next(turn) // 2 % len(names)]
    if "kind" in case.path_parameters:
        case.path_parameters.update(kind="claim", id=claims[0]["id"])


@pytest.mark.parametrize(("path", "method"), ORDINARY)
def test_every_route_does_what_it_documents(path: str, method: str, lively: Stage) -> None:
    def send(case: Any) -> None:
        real(lively, case)
        case.call_and_validate(base_url=lively.url, headers={"Authorization": "Bearer admin"})

    generate(path, method, send)


@pytest.mark.parametrize(("path", "method"), AGENTS)
def test_every_route_of_agents_does_what_it_documents(path: str, method: str, lively: Stage) -> None:
    def send(case: Any) -> None:
        if case.path == "/v1/worker/poll" and isinstance(case.body, dict):
            wait = case.body.setdefault("wait", BRIEF)
            if isinstance(wait, int | float) and BRIEF < wait <= 60:
                case.body["wait"] = BRIEF
        case.call_and_validate(base_url=lively.url, headers={"Authorization": f"Bearer {lively.agent_token()}"})

    generate(path, method, send)
