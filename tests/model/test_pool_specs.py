"""Pool specs: sensible defaults, refusals with the field and the reason, and what makes a new revision."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.pool import Name, PoolSpec, problems, revision_of
from holdfast.model.tenant import TenantName


def spec(**fields: Any) -> PoolSpec:
    return msgspec.convert(fields, PoolSpec)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("startTimeout", {"startTimeout": "0s"}),
    ("startTimeout", {"startTimeout": "9000h"}),
    ("claim.lease", {"claim": {"lease": "0s"}}),
    ("claim.lease", {"claim": {"lease": "0ms"}}),
    ("claim.lease", {"mode": "session", "claim": {"lease": "500ms"}}),
    ("claim.lease", {"mode": "session", "claim": {"lease": "2h", "maxDuration": "1h"}}),
    ("claim.maxDuration", {"claim": {"maxDuration": "0s"}}),
    ("claim.maxDuration", {"claim": {"maxDuration": "9000h"}}),
    ("park.ttl", {"park": {"ttl": "2h", "maxTTL": "1h"}}),
    ("park.ttl", {"park": {"ttl": "9000h"}}),
    ("park.maxTTL", {"park": {"ttl": "0s", "maxTTL": "0s"}}),
    ("park.min", {"park": {"min": 3, "max": 2}}),
    ("drain.grace", {"drain": {"grace": "9000h"}}),
    ("warm", {"warm": 11, "max": 10}),
    ("warm", {"max": 0}),
    ("worker.serve", {"mode": "job", "worker": {"serve": ["python"]}}),
    ("worker.listen", {"mode": "job", "worker": {"listen": "socket"}}),
    ("worker.run", {"mode": "session", "worker": {"run": ["python"]}}),
    ("worker.agent", {"mode": "session", "worker": {"agent": False}}),
    ("network.seal", {"mode": "session", "network": {"seal": True}}),
    ("rollout.maxUnavailable", {"rollout": {"maxUnavailable": "101%"}}),
    ("headroom.slots", {"headroom": {"mode": "constant"}}),
]


@pytest.mark.parametrize(("field", "written"), REFUSED, ids=[f"{n}-{field}" for n, (field, _) in enumerate(REFUSED)])
def test_what_makes_no_sense_is_refused_with_its_field_and_a_reason(field: str, written: dict[str, Any]) -> None:
    found = problems(spec(**written))
    assert [problem.field for problem in found] == [field]
    assert all(problem.reason for problem in found)


def test_several_mistakes_are_reported_at_once() -> None:
    found = problems(spec(mode="session", warm=5, max=2, worker={"run": ["x"], "agent": False}, park={"min": 2, "max": 1}))
    assert {problem.field for problem in found} == {"warm", "worker.run", "worker.agent", "park.min"}


@pytest.mark.parametrize(
    "written",
    [
        {"startTimeout": "1d"},
        {"startTimeout": "60s\n"},
        {"warm": -1},
        {"warm": 100_001},
        {"warm": 1.5},
        {"worker": {"port": 0}},
        {"worker": {"run": "python"}},
        {"rollout": {"maxUnavailable": "25%\n"}},
        {"rollout": {"maxUnavailable": "-1"}},
        {"rollout": {"maxUnavailable": "half"}},
        {"mode": "batch"},
        {"colour": "red"},
        {"park": {"maxTtl": "1h"}},
    ],
)
def test_what_the_types_forbid_never_becomes_a_spec(written: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        spec(**written)


@pytest.mark.parametrize("name", ["etl\n", "", "1etl", "ETL", "etl-", "e" * 54, "e tl", "é"])
def test_a_pool_name_is_a_dns_label(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)


@pytest.mark.parametrize("name", ["acme\n", "", "-acme", "acme-", "a" * 64, "a b", "a/b"])
def test_a_tenant_fits_a_label_value(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, TenantName)


GOOD: list[dict[str, Any]] = [
    {},
    {"warm": 0, "max": 0},
    {"mode": "session"},
    {"rollout": {"maxUnavailable": 0}},
    {"rollout": {"maxUnavailable": "0%"}},
    {"rollout": {"maxUnavailable": "100%"}},
    {"rollout": {"maxUnavailable": "7"}},
    {"park": {"ttl": "0s"}},
    {"drain": {"grace": "0s"}},
    {"worker": {"agent": False}, "network": {"seal": True}},
]


@pytest.mark.parametrize("written", GOOD, ids=str)
def test_what_makes_sense_is_taken(written: dict[str, Any]) -> None:
    assert problems(spec(**written)) == []


def test_a_short_job_needs_no_lease_setting() -> None:
    """Jobs have no lease, so the default lease must not refuse a pool of jobs with a longest duration of 30 s."""
    pool = spec(mode="job", claim={"maxDuration": "30s"})
    assert pool.lease is None
    assert problems(pool) == []


@settings(deadline=None, max_examples=150)
@given(
    limit=st.one_of(st.integers(0, 100_000), st.integers(0, 99_999).map(str), st.integers(0, 100).map(lambda n: f"{n}%")),
    workers=st.integers(0, 100_000),
)
def test_a_rollout_always_moves_and_a_share_never_takes_more_than_all(limit: int | str, workers: int) -> None:
    written = spec(rollout={"maxUnavailable": limit})
    assert problems(written) == []
    count = written.unavailable(workers)
    assert count >= 1
    if str(limit).endswith("%"):
        assert count <= max(1, workers)


def test_jobs_and_sessions_differ_in_lease_and_longest_duration() -> None:
    assert (spec().lease, spec().max_duration) == (None, 6 * 3600)
    session = spec(mode="session")
    assert (session.lease, session.max_duration) == (60, 24 * 3600)
    assert spec(claim={"maxDuration": "90m"}).max_duration == 5400


TEMPLATE: list[dict[str, Any]] = [
    {"mode": "session"},
    {"worker": {"run": ["python", "-V"]}},
    {"worker": {"port": 9090}},
    {"worker": {"listen": "socket"}},
    {"pod": {"containers": [{"image": "b"}]}},
    {"drain": {"grace": "2h"}},
    {"network": {"seal": True}},
    {"protection": {"mode": "always"}},
]
NOT_TEMPLATE: list[dict[str, Any]] = [
    {"warm": 7},
    {"worker": {"listen": "port"}},  # the same as without it
    {"max": 77},
    {"startTimeout": "20m"},
    {"silence": "retire"},
    {"claim": {"lease": "30s"}},
    {"claim": {"maxDuration": "1h"}},
    {"park": {"ttl": "30m", "min": 2}},
    {"protection": {"mode": "off"}},
    {"protection": {"required": True}},
    {"rollout": {"maxUnavailable": 3}},
    {"headroom": {"mode": "constant", "slots": 2}},
    {"network": {"egress": [{"to": []}]}},
    {"labels": ["gpu"]},
]


@pytest.mark.parametrize("written", TEMPLATE, ids=str)
def test_a_new_template_is_a_new_revision(written: dict[str, Any]) -> None:
    assert revision_of(spec(**written)) != revision_of(spec())


@pytest.mark.parametrize("written", NOT_TEMPLATE, ids=str)
def test_what_workers_do_not_see_rolls_nothing(written: dict[str, Any]) -> None:
    assert revision_of(spec(**written)) == revision_of(spec())


def test_a_revision_does_not_depend_on_the_order_of_keys() -> None:
    one = spec(pod={"a": {"x": 1, "y": 2}, "b": [1, 2]})
    other = spec(pod={"b": [1, 2], "a": {"y": 2, "x": 1}})
    assert revision_of(one) == revision_of(other)
    assert revision_of(spec(pod={"b": [2, 1], "a": {"x": 1, "y": 2}})) != revision_of(one)


def test_a_spec_survives_the_database() -> None:
    written = spec(mode="session", park={"ttl": "1m", "maxTTL": "2h", "max": 3}, rollout={"maxUnavailable": 2}, pod={"x": [1]})
    again = msgspec.json.decode(msgspec.json.encode(written), type=PoolSpec)
    assert again == written
    assert revision_of(again) == revision_of(written)
