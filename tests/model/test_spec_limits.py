"""Each limit of a spec from both sides, and each default."""

from typing import Any

import msgspec
import pytest

from holdfast.model.brake import BrakeLimits
from holdfast.model.duration import LONGEST, Duration, exact, seconds, text
from holdfast.model.effect import Done, Effect, Skipped, Stale, effect_of
from holdfast.model.pod import Heartbeat, Pod, Stamp
from holdfast.model.pool import FieldProblem, Name, Pool, PoolSpec, problems, revision_of
from holdfast.model.tenant import Tenant, TenantName, TenantSpec
from holdfast.model.worker import Worker


def spec(**fields: Any) -> PoolSpec:
    return msgspec.convert(fields, PoolSpec)


def written(limit: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for `a.b`."""
    field, _, rest = limit.partition(".")
    return {field: written(rest, value) if rest else value}


LIMITS: list[tuple[type, str, Any, Any]] = [
    (PoolSpec, "warm", 0, -1),
    (PoolSpec, "warm", 100_000, 100_001),
    (PoolSpec, "max", 100_000, 100_001),
    (PoolSpec, "park.min", 100_000, 100_001),
    (PoolSpec, "park.max", 0, -1),
    (PoolSpec, "headroom.slots", 100_000, 100_001),
    (PoolSpec, "worker.port", 1, 0),
    (PoolSpec, "worker.port", 65_535, 65_536),
    (PoolSpec, "worker.run", ["x"] * 256, ["x"] * 257),
    (PoolSpec, "worker.serve", ["x" * 32_768], ["x" * 32_769]),
    (PoolSpec, "worker.activate", ["x"] * 256, ["x"] * 257),
    (PoolSpec, "worker.reset", ["x"] * 256, ["x"] * 257),
    (PoolSpec, "rollout.maxUnavailable", "99999%", "100000%"),
    (PoolSpec, "rollout.maxUnavailable", "9", ""),
    (PoolSpec, "labels", ["x"] * 64, ["x"] * 65),
    (PoolSpec, "labels", ["x" * 128], ["x" * 129]),
    (PoolSpec, "network.egress", [{}] * 64, [{}] * 65),
    (PoolSpec, "network.ingress", [{}] * 64, [{}] * 65),
    (PoolSpec, "drain.grace", "0" * 31 + "s", "0" * 32 + "s"),
    (TenantSpec, "weight", 1, 0),
    (TenantSpec, "weight", 1000, 1001),
    (TenantSpec, "maxClaims", 0, -1),
    (TenantSpec, "maxWaiting", 1, 0),
    (TenantSpec, "maxWaiting", 1_000_000, 1_000_001),
    (TenantSpec, "maxOutputBytes", 0, -1),
    (TenantSpec, "maxOutputBytes", 2**50, 2**50 + 1),
    (BrakeLimits, "workers", 0, -1),
    (BrakeLimits, "workers", 1_000_000, 1_000_001),
    (BrakeLimits, "claims", 0, -1),
    (BrakeLimits, "claims", 1_000_000, 1_000_001),
    (BrakeLimits, "share", 0, -0.001),
    (BrakeLimits, "share", 1, 1.001),
    (BrakeLimits, "tenantShare", 0.001, 0),
    (BrakeLimits, "tenantShare", 1, 1.001),
    (TenantSpec, "maxClaims", 1_000_000, 1_000_001),
    (TenantSpec, "maxPriority", 0, -1),
    (TenantSpec, "maxPriority", 9, 10),
]


@pytest.mark.parametrize(
    ("kind", "limit", "taken", "refused"), LIMITS, ids=[f"{limit}-{n}" for n, (_, limit, *_) in enumerate(LIMITS)]
)
def test_a_limit_is_taken_and_one_step_beyond_it_is_refused(kind: type, limit: str, taken: Any, refused: Any) -> None:
    found = msgspec.to_builtins(msgspec.convert(written(limit, taken), kind))
    for part in limit.split("."):
        found = found[part]
    assert found == taken
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(written(limit, refused), kind)


@pytest.mark.parametrize("name", ["a", "e" * 53, "e-t-l", "e1"])
def test_the_longest_and_shortest_pool_names(name: str) -> None:
    assert msgspec.convert(name, Name) == name


@pytest.mark.parametrize("name", ["a", "A", "7", "a" * 63, "a.b_c-d"])
def test_the_longest_and_shortest_tenant_names(name: str) -> None:
    assert msgspec.convert(name, TenantName) == name


def test_a_pool_without_settings_has_these_defaults() -> None:
    assert msgspec.to_builtins(PoolSpec()) == {
        "mode": "job",
        "warm": 1,
        "max": 10,
        "startTimeout": "10m",
        "silence": "alert",
        "worker": {"run": [], "serve": [], "activate": [], "reset": [], "port": 8080, "listen": None, "agent": True},
        "pod": {},
        "claim": {"lease": "60s", "maxDuration": None},
        "park": {"ttl": "1m", "maxTTL": "1h", "min": 0, "max": None},
        "protection": {"mode": "claim", "required": False},
        "drain": {"grace": "1h"},
        "rollout": {"maxUnavailable": "25%"},
        "headroom": {"mode": "off", "slots": 0},
        "network": {"seal": False, "egress": [], "ingress": []},
        "labels": [],
    }


def test_a_tenant_without_settings_has_these_defaults() -> None:
    assert msgspec.to_builtins(TenantSpec()) == {"weight": 1, "maxClaims": None, "maxPriority": 0, "parkTTL": None} | {
        "maxWaiting": 1000,
        "maxOutputBytes": 1073741824,
    }
    tenant = Tenant(name="acme", spec=TenantSpec())
    assert (tenant.live, tenant.waiting) == (0, 0)


def test_a_row_and_a_pod_have_safe_defaults() -> None:
    """Defaults are safe: nothing is ready, protected, delivered, ended or spent unless it was reported."""
    worker = Worker(id="w", pool_id="p", pool="etl", state="warm", version=1, revision="r", created_at=0.0, state_since=0.0)
    assert (worker.ready, worker.terminating, worker.schedulable) == (False, False, True)
    pod = Pod(
        name="w",
        uid="u",
        worker="w",
        install="i",
        pool_id="p",
        pool="etl",
        revision="r",
        phase="running",
        version="1",
        created_at=0.0,
    )
    assert (pod.ready, pod.terminating, pod.schedulable, pod.epoch) == (False, False, True, 0)
    assert (pod.protected, pod.partly_protected, pod.untouched, pod.sealed, pod.agent_running) == (
        False,
        False,
        False,
        False,
        True,
    )
    heartbeat = Heartbeat(worker="w", age=0.0, doing="idle")
    assert (heartbeat.claim_ended, heartbeat.reported_since_recovery) == (False, False)
    assert Stamp("acme", "c-1", 7).at == 0.0
    pool = Pool(id="p", name="etl", spec=PoolSpec(), revision="r", state="live", source="api", created_at=0.0)
    assert (pool.failures, pool.generation) == (0, 1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mode": "session", "claim": {"lease": "1s"}}, None),
        ({"mode": "session", "claim": {"lease": "999ms"}}, "claim.lease"),
        ({"mode": "job", "claim": {"lease": "999ms"}}, "claim.lease"),
        ({"mode": "session", "claim": {"lease": "1h", "maxDuration": "1h"}}, None),
        ({"mode": "job", "claim": {"lease": "2h", "maxDuration": "1h"}}, None),
        ({"park": {"ttl": "1h", "maxTTL": "1h"}}, None),
        ({"park": {"min": 2, "max": 2}}, None),
        ({"park": {"min": 1}}, None),
        ({"warm": 10, "max": 10}, None),
        ({"mode": "session", "worker": {"serve": ["x"]}}, None),
        ({"mode": "job", "worker": {"run": ["x"]}}, None),
        ({"rollout": {"maxUnavailable": 101}}, None),
        ({"rollout": {"maxUnavailable": "101"}}, None),
        ({"headroom": {"mode": "constant", "slots": 1}}, None),
        ({"headroom": {"mode": "off", "slots": 0}}, None),
        ({"startTimeout": "1ms"}, None),
        ({"claim": {"lease": "1ms", "maxDuration": "1h"}}, "claim.lease"),
    ],
)
def test_a_value_at_its_limit_makes_sense_and_one_beyond_does_not(fields: dict[str, Any], field: str | None) -> None:
    assert [problem.field for problem in problems(spec(**fields))] == ([field] if field else [])


def test_a_contradiction_is_reported_with_its_numbers() -> None:
    assert problems(spec(warm=3, max=2)) == [FieldProblem("warm", "warm (3) must not exceed max (2)")]
    assert problems(spec(startTimeout="0s")) == [FieldProblem("startTimeout", "must be longer than 0s")]
    assert problems(spec(park={"ttl": "9000h"})) == [FieldProblem("park.ttl", "'9000h' is longer than a year")]


@pytest.mark.parametrize(
    ("limit", "workers", "at_once"),
    [
        ("25%", 8, 2),
        ("25%", 7, 1),
        ("25%", 0, 1),
        ("50%", 7, 3),
        ("100%", 7, 7),
        ("0%", 9, 1),
        (3, 1, 3),
        ("3", 100, 3),
        (0, 5, 1),
    ],
)
def test_how_many_a_rollout_replaces_at_once(limit: int | str, workers: int, at_once: int) -> None:
    assert spec(rollout={"maxUnavailable": limit}).unavailable(workers) == at_once


def test_a_revision_is_ten_letters_that_never_change_for_the_same_template() -> None:
    """Another hash after an upgrade would roll every worker of every pool."""
    assert revision_of(PoolSpec()) == "c4397e8288"
    assert len({revision_of(spec(worker={name: ["x"]})) for name in ("run", "serve", "activate", "reset")}) == 4


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0ms"),
        (0.25, "250ms"),
        (0.9994, "999ms"),
        (1, "1s"),
        (1.04, "1s"),
        (1.06, "1.1s"),
        (9.4, "9.4s"),
        (9.6, "10s"),
        (10.4, "10s"),
        (59, "59s"),
        (60, "1m"),
        (61, "1m1s"),
        (3600, "1h"),
        (3661, "1h1m"),
        (3601, "1h1s"),
    ],
)
def test_a_duration_is_shown_in_two_units_at_most(value: float, shown: str) -> None:
    assert text(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.001, "1ms"),
        (1.5, "1s500ms"),
        (61, "1m1s"),
        (3600, "1h"),
        (3661.007, "1h1m1s7ms"),
        (60, "1m"),
    ],
)
def test_an_exact_duration_can_be_read_back_to_the_millisecond(value: float, shown: str) -> None:
    assert exact(value) == shown
    assert seconds(shown) == pytest.approx(value, abs=0.0005)


def test_a_duration_has_at_most_32_characters_and_a_leap_year() -> None:
    assert LONGEST == 366 * 86_400
    assert seconds("0" * 31 + "s") == 0
    assert msgspec.convert("0" * 31 + "s", Duration)
    with pytest.raises(ValueError, match="32 characters"):
        seconds("0" * 32 + "s")


@pytest.mark.parametrize(
    ("answer", "effect"),
    [
        ("done", Done()),
        ("stale", Stale()),
        ("frozen", Skipped("frozen")),
        ("braked", Skipped("braked")),
        ("recovering", Skipped("recovering")),
    ],
)
def test_a_statements_answer_is_an_effect(answer: str, effect: Effect) -> None:
    assert effect_of(answer) == effect


@pytest.mark.parametrize("answer", ["unsure", "", "Done", "ended"])
def test_another_answer_is_impossible(answer: str) -> None:
    with pytest.raises(AssertionError):
        effect_of(answer)
