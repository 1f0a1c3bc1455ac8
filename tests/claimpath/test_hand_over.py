"""A hand-over protects, offers and signals. What fails goes back to the queue, is refused, or is left to the duty `deadlines`."""

import asyncio
from typing import Any, Literal

import msgspec
import pytest
import structlog.testing

from claimpath.recorded_store import Path, make_claim, make_pair, make_pool
from holdfast.claimpath.path import YIELD_SECONDS
from holdfast.model.effect import Done, Stale
from holdfast.model.pool import PoolSpec, ProtectionSpec
from holdfast.model.worker import Worker
from holdfast.ports.store import AcknowledgedClaim, EndedClaim, StoreUnavailable
from virtual_time import on_virtual_time, passed, settle

PAIR = make_pair("c-1")


def with_protection(mode: Literal["claim", "always", "off"] = "claim", *, required: bool = False) -> Path:
    return Path(make_pool(PoolSpec(protection=ProtectionSpec(mode=mode, required=required))))


def warm(on: Path) -> None:
    """Stores the worker as warm, as after the end of a claim to which nothing was delivered."""
    row = Worker(
        id="w-1", pool_id="p-linux", pool="linux", state="warm", version=5, revision="r", created_at=0.0, state_since=0.0
    )
    on.store.workers.rows["w-1"] = row


def signalled(on: Path) -> list[tuple[str, set[str]]]:
    """Returns a list that collects the ids of all signals from now on."""
    seen: list[tuple[str, set[str]]] = []
    on.signals.claims.subscribe(lambda ids: seen.append(("claims", ids)))
    on.signals.workers.subscribe(lambda ids: seen.append(("workers", ids)))
    return seen


@pytest.mark.parametrize(("state", "counted"), [("active", 1), ("assigned", 0)])
def test_an_offer_that_was_stored_is_signalled_with_its_row_and_counted_if_active(state: str, counted: int) -> None:
    async def main() -> None:
        on, row = Path(), make_claim("c-1", state, fence=7, worker="w-1")
        on.claims.rows["c-1"] = row
        seen = signalled(on)
        with on.signals.claims.watch("c-1") as waiter:
            await on.path.start_hand_over(on.pool, PAIR)
            assert (waiter.row, waiter.must_read) == (row, False)
        assert seen == [("claims", {"c-1"}), ("workers", {"w-1"})]
        assert on.count("claim_handover_seconds_count", pool="linux") == counted

    on_virtual_time(main())


def test_an_offer_that_came_too_late_takes_the_stamp_off_again() -> None:
    async def main() -> None:
        on = Path()
        warm(on)
        seen = signalled(on)
        await on.path.start_hand_over(on.pool, PAIR)
        assert on.store.workers.unprotected == [("w-1", 5)]
        assert (on.cluster.kept["w-1"].stamp, on.cluster.kept["w-1"].protected) == (None, False)
        assert seen == [("workers", {"w-1"})]

    on_virtual_time(main())


def test_a_worker_that_cannot_be_used_is_signalled_and_its_claim_gets_another_in_the_same_call() -> None:
    async def main() -> None:
        on = Path()
        on.cluster.kept["w-1"] = msgspec.structs.replace(on.cluster.kept["w-1"], terminating=True)
        seen = signalled(on)
        await on.path.start_hand_over(on.pool, PAIR)
        await settle()
        assert on.claims.changes == [("requeue", "c-1", 7, "its worker's pod was terminating at hand-over")]
        assert [(pool, new) for pool, new, _ in on.claims.matches] == [("p-linux", [])]
        assert (seen, on.claims.offers) == ([("workers", {"w-1"})], [])

    on_virtual_time(main())


@pytest.mark.parametrize(
    ("mode", "down", "protected", "counted"),
    [
        ("claim", False, True, 0),
        ("claim", True, False, 1),
        ("always", False, True, 0),
        ("always", True, False, 1),
        ("off", False, False, 0),
    ],
)
def test_only_a_missing_protection_that_the_pool_asks_for_is_counted(
    mode: Any, down: bool, protected: bool, counted: int
) -> None:
    async def main() -> None:
        on = with_protection(mode)
        on.cluster.down = down
        await on.path.start_hand_over(on.pool, PAIR)
        assert on.claims.offers == [[("c-1", 7, protected)]]
        assert on.count("handover_unprotected_total", pool="linux") == counted

    on_virtual_time(main())


@pytest.mark.parametrize("mode", ["claim", "off"])
def test_a_pool_that_requires_protection_refuses_without_it_unless_its_mode_is_off(mode: Any) -> None:
    async def main() -> None:
        on = with_protection(mode, required=True)
        warm(on)
        on.cluster.answers_lost = True  # the protection is written, and the cluster's answer is lost
        ended = make_claim("c-1", "ended", outcome="refused", worker="w-1")
        on.claims.next_ended = EndedClaim(Done(), ended)
        await on.path.start_hand_over(on.pool, PAIR)
        if mode == "off":
            assert (on.claims.offers, on.claims.changes) == ([[("c-1", 7, False)]], [])
            return
        about = {"outcome": "refused", "how": "unprotected", "states": ("assigned",), "fence": 7}
        reason = "the cluster did not accept the protection that the pool requires"
        assert on.claims.changes == [("end", "c-1", about | {"reason": reason})]
        assert on.claims.offers == []
        assert on.cluster.kept["w-1"].stamp is None, "the stamp that was written is taken off at once"
        assert on.count("claim_ends_total", how="unprotected") == 1
        assert on.count("handover_unprotected_total", pool="linux") == 0, "it was not handed over"

    on_virtual_time(main())


def test_a_hand_over_whose_store_is_away_is_left_to_the_duty_deadlines() -> None:
    async def main() -> None:
        on = Path()
        on.claims.offer_errors = [StoreUnavailable("away")]
        on.claims.pairs = [[PAIR]]
        with structlog.testing.capture_logs() as logs:
            await on.path.match(on.pool)
            await settle()
        assert (len(on.claims.offers), logs) == (1, [])

    on_virtual_time(main())


def test_a_defect_in_a_hand_over_is_logged_and_the_others_go_on() -> None:
    async def main() -> None:
        on = Path()
        on.claims.rows["c-1"] = make_claim("c-1", "active", fence=7, worker="w-1")
        on.claims.pairs = [[make_pair("c-0", "w-unknown"), PAIR]]  # the cluster has no record of this worker and raises KeyError
        with structlog.testing.capture_logs() as logs:
            await on.path.match(on.pool)
            assert len(on.path._tasks) == 2, "a task that is not kept could be collected while it runs"
            await settle()
        assert [line["event"] for line in logs] == ["background work of the claim path failed"]
        assert on.claims.offers == [[("c-1", 7, True)]]
        assert on.path._tasks == set()

    on_virtual_time(main())


def test_a_hand_over_that_is_cancelled_is_no_defect() -> None:
    async def main() -> None:
        on = Path()
        on.cluster.on_protect = asyncio.Event().wait
        on.claims.pairs = [[PAIR]]
        with structlog.testing.capture_logs() as logs:
            await on.path.match(on.pool)
            await settle()
            for task in list(on.path._tasks):
                task.cancel()
            await settle()
        assert (logs, on.path._tasks) == ([], set())

    on_virtual_time(main())


def test_the_duty_match_learns_that_the_store_is_away() -> None:
    async def main() -> None:
        on = Path()
        on.claims.errors = [StoreUnavailable("away")]
        with pytest.raises(StoreUnavailable):
            await on.path.match(on.pool)
        assert len(on.claims.matches) == 1, "the duty tries again with its next pass"

    on_virtual_time(main())


def test_a_freed_worker_is_matched_at_once_if_its_pool_exists() -> None:
    async def main() -> None:
        on = Path()
        on.store.pools.rows["p-linux"] = on.pool
        on.claims.pairs = [[PAIR]]
        on.path.worker_freed("p-gone")
        await settle()
        assert on.claims.matches == []
        on.path.worker_freed("p-linux")
        await settle()
        assert on.claims.matches == [("p-linux", [], 128)]
        assert on.claims.offers == [[("c-1", 7, True)]]

    on_virtual_time(main())


def test_a_freed_worker_whose_pool_cannot_be_read_is_left_to_the_duty_match() -> None:
    async def main() -> None:
        on = Path()
        on.store.pools.error = StoreUnavailable("away")
        with structlog.testing.capture_logs() as logs:
            on.path.worker_freed("p-linux")
            await settle()
        assert (on.claims.matches, logs) == ([], [])

    on_virtual_time(main())


@pytest.mark.parametrize("first", [True, False])
def test_an_acknowledgement_is_signalled_with_its_row_and_counted_the_first_time(first: bool) -> None:
    async def main() -> None:
        on, row = Path(), make_claim("c-1", "active", worker="w-1")
        on.claims.next_acknowledged = AcknowledgedClaim(row, first)
        with on.signals.claims.watch("c-1") as waiter:
            assert await on.path.acknowledge("w-1", 7, "10.0.0.1:80") == row
            assert (waiter.row, waiter.must_read) == (row, False)
        assert on.claims.changes == [("acknowledge", "w-1", 7, "10.0.0.1:80")]
        assert on.count("claim_handover_seconds_count", pool="linux") == int(first)

    on_virtual_time(main())


def test_an_acknowledgement_of_a_claim_that_moved_on_changes_nothing() -> None:
    async def main() -> None:
        on = Path()
        seen = signalled(on)
        assert await on.path.acknowledge("w-1", 7, None) is None
        assert seen == []

    on_virtual_time(main())


@pytest.mark.parametrize("worker", ["w-1", None])
def test_an_end_is_counted_and_signalled_with_its_row(worker: str | None) -> None:
    async def main() -> None:
        on, row = Path(), make_claim("c-1", "ended", outcome="released", worker=worker, ended_at=9.0)
        seen = signalled(on)
        with on.signals.claims.watch("c-1") as waiter:
            on.path.ended(EndedClaim(Done(), row), "release")
            assert (waiter.row, waiter.must_read) == (row, False)
        assert on.count("claim_ends_total", how="release") == 1
        assert seen == [("claims", {"c-1"}), *([("workers", {worker})] if worker else [])]

    on_virtual_time(main())


def test_an_end_that_did_not_happen_is_neither_counted_nor_signalled() -> None:
    async def main() -> None:
        on = Path()
        seen = signalled(on)
        on.path.ended(EndedClaim(Stale()), "release")
        assert (seen, on.count("claim_ends_total", how="release")) == ([], 0)

    on_virtual_time(main())


def test_other_work_waits_until_the_last_of_several_hand_overs_has_finished() -> None:
    async def main() -> None:
        on, gates = Path(workers=("w-1", "w-2")), [asyncio.Event(), asyncio.Event()]
        opening = iter(gates)
        on.cluster.on_protect = lambda: next(opening).wait()
        on.claims.pairs = [[PAIR, make_pair("c-2", "w-2")]]
        await on.path.yield_to_hand_overs()
        assert passed() == 0, "no hand-over is in progress"
        await on.path.match(on.pool)
        await settle()
        yielding = asyncio.create_task(on.path.yield_to_hand_overs())
        await asyncio.sleep(0.1)
        gates[0].set()
        await settle()
        assert not yielding.done()
        await asyncio.sleep(0.1)
        gates[1].set()
        await yielding
        assert passed() == 0.2
        await on.path.yield_to_hand_overs()
        assert passed() == 0.2

    on_virtual_time(main())


def test_other_work_waits_for_a_hand_over_that_hangs_at_most_half_a_second_each_time() -> None:
    async def main() -> None:
        on = Path()
        on.cluster.on_protect = lambda: asyncio.sleep(0.9)
        on.claims.pairs = [[PAIR]]
        await on.path.match(on.pool)
        await settle()
        await on.path.yield_to_hand_overs()
        assert passed() == YIELD_SECONDS
        await on.path.yield_to_hand_overs()
        assert passed() == 0.9
        on.claims.pairs = [[make_pair("c-2")]]
        await on.path.match(on.pool)
        await settle()
        await on.path.yield_to_hand_overs()
        assert passed() == 0.9 + YIELD_SECONDS, "the end of the first hand-over is not taken for the end of the second"

    on_virtual_time(main())
