"""A waiter is notified about its own claim, worker or pool, with the row if there is one. No notification hides another."""

import asyncio
from typing import Literal

import pytest

from holdfast.claimpath.signals import Signals
from holdfast.model.claim import Claim
from virtual_time import on_virtual_time, passed


def claim(state: Literal["waiting", "assigned", "active", "ended"]) -> Claim:
    return Claim(
        id="c-1", pool_id="p-1", pool="linux", tenant="acme", state=state, reason="", priority=0, attempts=1, created_at=0.0
    )


def test_a_waiter_wakes_for_its_own_key_only() -> None:
    async def main() -> None:
        signals = Signals()
        with signals.claims.watch("c-1") as mine, signals.claims.watch("c-2") as other, signals.workers.watch("c-1") as worker:
            signals.claims.changed("c-1", row=claim("active"))
            await asyncio.wait_for(mine.wait(5), 1)
            assert mine.row == claim("active")
            assert (other.row, other.must_read, worker.row, worker.must_read) == (None, False, None, False)

    asyncio.run(main())


def test_a_signal_with_a_row_does_not_hide_an_earlier_one_without() -> None:
    """The row may be older than the change of the other signal, so the waiter still has to read."""

    async def main() -> None:
        signals = Signals()
        with signals.claims.watch("c-1") as waiter:
            signals.claims.changed("c-1")
            signals.claims.changed("c-1", row=claim("assigned"))
            assert waiter.must_read
            assert waiter.row == claim("assigned")
            waiter.clear()
            assert (waiter.must_read, waiter.row) == (False, None)
            signals.claims.changed("c-1", row=claim("active"))
            assert not waiter.must_read, "with its row there is nothing to look for"

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "topic"), [("c", "claims"), ("w", "workers"), ("p", "pools"), ("t", "tenants")])
def test_a_notice_of_another_replica_is_the_same_signal(kind: Literal["c", "w", "p", "t"], topic: str) -> None:
    async def main() -> None:
        signals, received = Signals(), list[set[str]]()
        getattr(signals, topic).subscribe(received.append)
        with getattr(signals, topic).watch("x-1") as waiter:
            signals.notice(kind, ["x-1", "x-2"])
            await asyncio.wait_for(waiter.wait(5), 1)
            assert waiter.must_read
        assert received == [{"x-1", "x-2"}]

    asyncio.run(main())


def test_after_a_gap_in_the_notices_every_waiter_wakes_but_none_is_named() -> None:
    async def main() -> None:
        signals = Signals()
        with signals.claims.watch("c-1") as one, signals.workers.watch("w-1") as two, signals.pools.watch("p-1") as three:
            signals.notice("reset", [])
            for waiter in (one, two, three):
                await asyncio.wait_for(waiter.wait(5), 1)
                assert not waiter.must_read
        assert not signals.stopping.is_set()
        signals.stop()
        assert signals.stopping.is_set()

    asyncio.run(main())


def test_a_stop_wakes_every_waiter() -> None:
    async def main() -> None:
        signals = Signals()
        with signals.claims.watch("c-1") as one, signals.workers.watch("w-1") as two, signals.pools.watch("p-1") as three:
            signals.stop()
            for waiter in (one, two, three):
                await waiter.wait(5)
        assert passed() == 0

    on_virtual_time(main())


def test_a_signal_from_before_the_clear_does_not_wake_its_waiter_again() -> None:
    async def main() -> None:
        signals = Signals()
        with signals.claims.watch("c-1") as waiter:
            signals.claims.changed("c-1")
            waiter.clear()
            await waiter.wait(5)
            assert passed() == 5

    on_virtual_time(main())


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_waiter_without_time_left_does_not_wait(seconds: float) -> None:
    async def main() -> None:
        with Signals().claims.watch("c-1") as waiter:
            await waiter.wait(seconds)
        assert passed() == 0

    on_virtual_time(main())


def test_a_row_belongs_to_one_claim() -> None:
    signals = Signals()
    with pytest.raises(AssertionError):
        signals.claims.changed("c-1", "c-2", row=claim("active"))
    with pytest.raises(AssertionError):
        signals.claims.changed(row=claim("active"))


def test_one_waiter_that_leaves_takes_no_other_with_it() -> None:
    async def main() -> None:
        signals = Signals()
        with signals.claims.watch("c-1") as stays:
            with signals.claims.watch("c-1"):
                pass
            signals.claims.changed("c-1")
            assert stays.must_read

    asyncio.run(main())


def test_a_waiter_that_left_is_forgotten() -> None:
    async def main() -> None:
        signals = Signals()
        with signals.claims.watch("c-1"), signals.claims.watch("c-1") as second:
            pass
        signals.claims.changed("c-1")
        assert not second.must_read
        assert signals.claims._waiters == {}

    asyncio.run(main())
