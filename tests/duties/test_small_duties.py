"""What `match`, `deadlines`, `scale` and `prune` read, how they act on it, and how a large view is split."""

import asyncio
from typing import Any, cast

import pytest
from clockwork_pool import load, pool
from converge_views import NOW, pod, row, state

from holdfast.duties.actions import Match, PruneHistory, PruneOutputs
from holdfast.duties.deadlines import Deadlines
from holdfast.duties.duty import Parted, Ports
from holdfast.duties.match import MatchDuty
from holdfast.duties.observed import PART, Case, Observed, Verdict
from holdfast.duties.prune import KEEP_DAYS, OUTPUT_SECONDS, Prune
from holdfast.duties.scale import Scale
from holdfast.ports.recovery import Recovery


class Store:
    """The store, with the methods that these duties read."""

    def __init__(self, fleet: Recovery | None = None) -> None:
        self.pools = self.claims = self.history = self.recovery = self
        self._fleet = fleet or state()
        self.limits: list[int] = []

    async def demand(self) -> list[str]:
        return ["p-1", "p-2"]

    async def due(self, limit: int, _stalled: float) -> list[Any]:
        self.limits.append(limit)
        return []

    async def loads(self) -> list[Any]:
        return [load(pool())]

    async def state(self) -> Recovery:
        return self._fleet

    async def live_outputs(self) -> set[str]:
        return {"c-1", "c-2"}

    async def output_sizes(self) -> dict[str, int]:
        return {"c-1": 5, "c-2": 7}

    async def excess_outputs(self, sizes: dict[str, int]) -> set[str]:
        assert sizes == {"c-1": 5, "c-2": 7}
        return {"c-2"}

    @property
    def ports(self) -> Ports:
        return Ports(cast(Any, self), cast(Any, self))


def test_every_pool_with_demand_is_matched() -> None:
    duty = MatchDuty()
    assert duty.plan(asyncio.run(duty.observe(Store().ports))) == [Match("p-1"), Match("p-2")]


def test_a_pass_of_deadlines_reads_a_batch() -> None:
    store = Store()
    assert asyncio.run(Deadlines().observe(store.ports)) == []
    assert store.limits == [500]


def test_scale_reads_the_loads_of_all_pools() -> None:
    assert asyncio.run(Scale().observe(Store().ports)) == [load(pool())]


@pytest.mark.parametrize(
    ("fleet", "known"),
    [
        (state(), True),
        (state(recovering=True), False),
        (state(recovering=True, recovered_ago=1e9), False),
        (state(recovered_ago=0.0), False),
        (state(recovered_ago=OUTPUT_SECONDS - 1, age=OUTPUT_SECONDS), False),
        (state(recovered_ago=OUTPUT_SECONDS, age=OUTPUT_SECONDS), True),
        (state(recovered_ago=OUTPUT_SECONDS, age=OUTPUT_SECONDS - 1), False),
    ],
    ids=["never", "recovering", "recovering again", "just recovered", "within a day", "a day ago", "a jump of the clock ago"],
)
def test_outputs_are_pruned_only_by_a_database_that_knows_them_all(fleet: Recovery, known: bool) -> None:
    """A database that lost commits does not know claims that ended in them, so their outputs must not be pruned."""
    duty = Prune()
    plan = duty.plan(asyncio.run(duty.observe(Store(fleet).ports)))
    assert plan == [PruneHistory(KEEP_DAYS), *([PruneOutputs(frozenset({"c-1"}))] if known else [])]


def view(rows: int, pods: int, **facts: Any) -> Observed:
    """Returns a view of workers w-00000 and so on. The first `rows` of them have rows, the last `pods` of them have pods."""
    names = [f"w-{n:05}" for n in range(max(rows, pods) + min(rows, pods) // 2)]
    these_rows = {name: row(id=name) for name in names[:rows]}
    these_pods = {name: pod(name=name) for name in names[len(names) - pods :]}
    return Observed(these_pods, these_rows, {}, state(**facts), NOW, quarantined=frozenset({"w-x"}))


def test_a_large_view_is_cut_into_parts_that_miss_nothing_and_repeat_nothing() -> None:
    whole = view(rows=1000, pods=700)
    parts = list(whole.parts())
    assert len(parts) == 3
    for kind in ("rows", "pods"):
        joined: dict[str, Any] = {}
        for part in parts:
            some = getattr(part, kind)
            assert not joined.keys() & some.keys()
            joined |= some
        assert joined == getattr(whole, kind)
    assert all(len(part.rows.keys() | part.pods.keys()) <= PART for part in parts)
    assert all((part.now, part.quarantined, part.whole) == (NOW, {"w-x"}, True) for part in parts)
    assert isinstance(whole, Parted)


def test_a_view_that_fits_stays_whole() -> None:
    fits = view(rows=PART, pods=0)
    assert list(fits.parts()) == [fits]
    assert len(list(view(rows=PART + 1, pods=0).parts())) == 2


def test_recovery_is_judged_by_the_whole() -> None:
    large = view(rows=PART + 1, pods=0, recovering=True)
    assert list(large.parts()) == [large]


def test_a_view_is_whole_and_a_verdict_does_nothing_by_default() -> None:
    plain = Observed({}, {}, {}, state(), NOW)
    assert (plain.whole, plain.missing_before, plain.quarantined, plain.strange) == (True, frozenset(), frozenset(), {})
    assert Verdict(Case.QUIET).actions == []


def test_cases_are_named_in_metrics_by_their_own_names() -> None:
    assert [case.value for case in Case] == [case.name.lower().replace("_", "-") for case in Case]
