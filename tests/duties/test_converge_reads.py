"""What `converge` reads, and what it remembers between two passes: missing and strange pods, and lists that cannot be right."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest
from converge_views import NAME, NOW, UID, heartbeat, pod, row, seen, state

from holdfast.duties import converge as module
from holdfast.duties.actions import NoteUid, Quarantine, ShowFacts
from holdfast.duties.converge import Converge
from holdfast.duties.duty import Ports
from holdfast.duties.observed import Observed
from holdfast.model.pod import Heartbeat, Pod
from holdfast.ports.cluster import ClusterUnavailable
from holdfast.ports.recovery import Recovery
from holdfast.ports.store import Row


class Both:
    """The cluster and the store, with the methods that `converge` reads."""

    def __init__(self, pods: Iterable[Pod] = (), rows: Iterable[Row] = (), heartbeats: Iterable[Heartbeat] = ()) -> None:
        self.listed, self.stored, self.reported = list(pods), list(rows), list(heartbeats)
        self.asked: list[Any] = []
        self.workers = self.recovery = self

    async def pods(self) -> list[Pod]:
        return self.listed

    async def read_cached(self, names: list[str]) -> dict[str, Pod]:
        self.asked.append(("pods", names))
        return {each.name: each for each in self.listed if each.name in names}

    async def rows(self, names: list[str] | None) -> list[Row]:
        self.asked.append(("rows", names))
        return [each for each in self.stored if names is None or each.worker.id in names]

    async def heartbeats(self, names: list[str]) -> list[Heartbeat]:
        self.asked.append(("heartbeats", names))
        return [each for each in self.reported if each.worker in names]

    async def state(self) -> Recovery:
        return state(mark=77)

    async def now(self) -> float:
        return NOW

    @property
    def ports(self) -> Ports:
        return Ports(cast(Any, self), cast(Any, self))


def full(duty: Converge, both: Both) -> Observed:
    return asyncio.run(duty.observe(both.ports))


def some(duty: Converge, both: Both, *names: str) -> Observed:
    return asyncio.run(duty.observe_some(both.ports, names))


class Clock:
    """The monotonic clock of the event loop, which the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        real = asyncio.get_running_loop

        def loop() -> Any:
            real()
            return self

        monkeypatch.setattr(module.asyncio, "get_running_loop", loop)

    def time(self) -> float:
        return self.now


def test_a_full_pass_reads_all_pods_and_rows_and_is_marked_as_full() -> None:
    both = Both([pod()], [row()])
    view = full(Converge(), both)
    assert (view.pods, view.rows) == ({NAME: pod()}, {NAME: row()})
    assert (view.now, view.state.mark, view.whole) == (NOW, 77, True)
    assert both.asked == [("rows", None)], "no pod is without a row, so no heartbeat is asked for"


def test_a_look_at_some_workers_reads_these_and_takes_absence_for_proof() -> None:
    both = Both([pod(), pod(name="w-2", uid="uid-2")], [row(), row(id="w-2", pod_uid="uid-2")])
    view = some(Converge(), both, "w-2", "w-3")
    assert (set(view.pods), set(view.rows)) == ({"w-2"}, {"w-2"})
    assert view.missing_before == {"w-2", "w-3"}
    assert view.whole is False
    assert both.asked == [("pods", ["w-2", "w-3"]), ("rows", ["w-2", "w-3"])]


def test_heartbeats_are_read_for_pods_without_a_row_only() -> None:
    both = Both([pod(), pod(name="w-2")], [row()], [heartbeat(worker="w-2"), heartbeat(worker=NAME)])
    view = full(Converge(), both)
    assert view.heartbeats == {"w-2": heartbeat(worker="w-2")}
    assert ("heartbeats", ["w-2"]) in both.asked


@pytest.mark.parametrize(
    ("rows", "believed"),
    [
        ([], True),
        ([row()], True),
        ([row(), row(id="w-2", pod_uid=None)], True),
        ([row(), row(id="w-2")], False),
        ([row(), row(id="w-2"), row(id="w-3")], False),
    ],
    ids=["no rows", "one worker", "one worker that had a pod", "two", "three"],
)
def test_a_list_that_is_empty_all_at_once_is_not_believed(rows: list[Row], believed: bool) -> None:
    """P7: a list that lost every pod at the same time is wrong, unless there was only one."""
    if believed:
        assert full(Converge(), Both([], rows)).pods == {}
        return
    with pytest.raises(ClusterUnavailable):
        full(Converge(), Both([], rows))


def test_an_empty_list_is_judged_by_pods_not_by_rows() -> None:
    assert len(full(Converge(), Both([pod()], [row(), row(id="w-2"), row(id="w-3")])).pods) == 1


def test_what_a_full_pass_missed_is_known_to_the_next_one() -> None:
    others = [row(id="w-gone", pod_uid="uid-9"), row(id="w-2", pod_uid="uid-old"), row(id="w-3", pod_uid=None)]
    both = Both([pod(), pod(name="w-2", uid="uid-new"), pod(name="w-3", uid="uid-3")], [row(), *others])
    duty = Converge()
    assert full(duty, both).missing_before == frozenset(), "a replica that takes over knows nothing yet"
    assert full(duty, both).missing_before == {"w-gone", "w-2"}, (
        "no pod, or a pod with another UID; an unknown UID is not missing"
    )


def test_a_look_at_some_workers_does_not_change_what_full_passes_missed() -> None:
    both = Both([pod()], [row(), row(id="w-gone")])
    duty = Converge()
    full(duty, both)
    assert some(duty, both, NAME).missing_before == {NAME, "w-gone"}
    both.listed.append(pod(name="w-gone"))
    assert full(duty, both).missing_before == {"w-gone"}
    assert full(duty, both).missing_before == frozenset(), "it was there in the pass before"


def test_a_strange_pods_time_runs_by_our_own_clock_from_when_it_was_first_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, duty = Clock(monkeypatch), Converge()
    both = Both([pod(), pod(name="w-2", uid="uid-2")], [row()])
    assert full(duty, both).strange == {"w-2": 0.0}
    clock.now += 40
    assert full(duty, both).strange == {"w-2": 40.0}
    clock.now += 6
    assert some(duty, both, "w-2").strange == {"w-2": 46.0}


def test_a_look_at_some_workers_forgets_no_stranger_and_a_full_pass_forgets_those_that_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, duty = Clock(monkeypatch), Converge()
    both = Both([pod(name="w-2", uid="uid-2"), pod(name="w-3", uid="uid-3")])
    full(duty, both)
    clock.now += 10
    assert some(duty, both, "w-3").strange == {"w-3": 10.0}
    assert full(duty, both).strange == {"w-2": 10.0, "w-3": 10.0}
    both.listed = [pod(name="w-3", uid="uid-3")]
    full(duty, both)
    both.listed.append(pod(name="w-2", uid="uid-2"))
    clock.now += 5
    assert full(duty, both).strange == {"w-2": 0.0, "w-3": 15.0}


def test_a_stranger_is_its_uid_not_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, duty = Clock(monkeypatch), Converge()
    full(duty, Both([pod(name="w-2", uid="uid-2")]))
    clock.now += 50
    assert full(duty, Both([pod(name="w-2", uid="uid-new")])).strange == {"w-2": 0.0}


def test_what_was_quarantined_in_one_pass_is_not_reported_again_in_the_next() -> None:
    duty, both = Converge(), Both([pod(left_to=1)])
    (alarm,) = duty.plan(full(duty, both))
    assert isinstance(alarm, Quarantine)
    assert duty.plan(full(duty, both)) == []


def test_facts_come_last_because_they_make_other_actions_of_the_plan_stale() -> None:
    view = seen(None, None, pods={}, rows={})
    unknown = {"w-1": row("spawning", id="w-1", pod_uid=None), NAME: row()}
    view = Observed({"w-1": pod(name="w-1"), NAME: pod(node="n-1")}, unknown, {}, view.state, NOW)
    first, last = Converge().plan(view)
    assert first == NoteUid("w-1", UID)
    assert isinstance(last, ShowFacts)
    assert [(fact.worker, fact.node) for fact in last.facts] == [(NAME, "n-1")]


def test_a_plan_without_news_shows_no_facts() -> None:
    assert Converge().plan(seen(row(), pod())) == []


def test_one_worker_that_cannot_be_judged_keeps_no_other_from_it() -> None:
    broken = row("held", id="w-0", pod_uid="uid-0", claim=None)  # a held row without a claim is impossible
    view = Observed({"w-1": pod(name="w-1")}, {"w-0": broken, "w-1": row("spawning", id="w-1", pod_uid=None)}, {}, state(), NOW)
    assert Converge().plan(view) == [NoteUid("w-1", UID)]
