"""Webhooks that deny a pod or cannot be reached: the slot is freed at once, and the pool names the webhook."""

import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from kube_fleet import Made, job
from webhooks import NAME, denying, hooked, unreachable

from holdfast.kubernetes.access import Access as OurAccess
from holdfast.kubernetes.api import Api, ApiRefused
from holdfast.ports.cluster import OutcomeUnknown
from holdfast_testcluster import keys
from waiting import eventually


@pytest.mark.parametrize(("webhook", "expected"), [(unreachable, "connection refused"), (denying, "no pods on Mondays")])
def test_a_pod_that_a_webhook_stops_gives_its_slot_back_and_the_pool_names_the_webhook(
    fleet_of: Made, tmp_path: Path, webhook: Callable[[Path], contextlib.AbstractContextManager[int]], expected: str
) -> None:
    fleet = fleet_of(pools={"linux": job(warm=1, max=2)})
    fleet.warm(1, within=60)
    keys.make_authority(tmp_path)
    with webhook(tmp_path) as port, hooked(fleet.access, fleet.namespace, tmp_path, port):
        done = fleet.claim("linux", command=["true"], wait="30s")  # takes the warm worker, so that another must be spawned

        def trouble() -> Any:
            shown = fleet.api("GET", "/v1/pools/linux").json["status"]["trouble"]
            return shown if shown and NAME in shown else None

        shown = str(eventually(trouble, 60, "the pool names the webhook"))
        assert shown.startswith("webhook: ")
        assert expected in shown
        assert fleet.see(done["id"], wait="60s")["outcome"] == "completed", "what runs is not touched by it"
        # The start timeout is ten minutes, so a slot that is not freed would still be there.
        eventually(lambda: not fleet.workers(), 60, "no slot is taken without a pod")
        gone = [each for each in fleet.api("GET", "/v1/events?pool=linux").json["items"] if each["kind"] == "worker.gone"]
        assert any(NAME in (each["reason"] or "") for each in gone), "and why is kept"
    fleet.warm(1, within=90)
    eventually(lambda: fleet.api("GET", "/v1/pools/linux").json["status"]["trouble"] is None, 30, "it no longer complains")


# Which 5xx answers are refusals

CALL = 'Internal error occurred: failed calling webhook "x": failed to call webhook: connection refused'
UNKNOWN = [
    (
        "another error",
        "POST",
        500,
        {"reason": "InternalError", "message": "Internal error occurred: etcdserver: request timed out"},
    ),
    ("a name of a user's", "POST", 500, {"reason": "InternalError", "message": f"pods {CALL!r} broke"}),
    ("no reason: not the API server's own", "POST", 500, {"message": CALL}),
    ("another code", "POST", 503, {"reason": "InternalError", "message": CALL}),
    ("another code than in its body", "POST", 504, {"code": 500, "reason": "InternalError", "message": CALL}),
    ("not a create", "PATCH", 500, {"reason": "InternalError", "message": CALL}),
    ("no status at all", "POST", 502, CALL),
]


class Fixed:
    """An API server at an address, used without credentials."""

    def __init__(self, port: int) -> None:
        self.server, self.tls = f"http://127.0.0.1:{port}", False

    async def headers(self, *, refused: bool = False) -> dict[str, str]:
        return {}


async def answered(code: int, body: Any, ask: Callable[[Api], Awaitable[bytes]]) -> BaseException | None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=code, text=body if isinstance(body, str) else json.dumps({"code": code, **body}))

    app = web.Application()
    app.router.add_route("*", "/pods", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = Api(cast(OurAccess, Fixed(runner.addresses[0][1])))
    try:
        await ask(api)
    except (ApiRefused, OutcomeUnknown) as error:
        return error
    finally:
        await api.close()
        await runner.cleanup()
    return None


async def test_a_create_that_fell_with_its_webhook_is_refused() -> None:
    status = {"reason": "InternalError", "message": CALL}
    assert isinstance(await answered(500, status, lambda api: api.post("/pods", {})), ApiRefused)


@pytest.mark.parametrize(("method", "code", "body"), [case[1:] for case in UNKNOWN], ids=[case[0] for case in UNKNOWN])
async def test_every_other_5xx_stays_unknown(method: str, code: int, body: Any) -> None:
    write = (lambda api: api.post("/pods", {})) if method == "POST" else (lambda api: api.patch("/pods", {}))
    assert isinstance(await answered(code, body, write), OutcomeUnknown)
