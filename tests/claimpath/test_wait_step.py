"""A waiting request returns at the moment when its claim is ready or its time is up, and reads as little as possible."""

import asyncio

import pytest

from claimpath.recorded_store import Path, make_claim
from holdfast.claimpath.path import LOOK_AGAIN
from holdfast.model.claim import Claim
from virtual_time import on_virtual_time, passed, settle

DONE = ("active", "ended")


async def begin(on: Path, seconds: float = 20.0, id_: str = "c-1") -> "asyncio.Task[Claim | None]":
    waiting = asyncio.create_task(on.path.wait(id_, DONE, seconds))
    await settle()
    return waiting


def test_a_claim_that_does_not_exist_is_answered_at_once() -> None:
    async def main() -> None:
        on = Path()
        assert await on.path.wait("c-nowhere", DONE, 20.0) is None
        assert passed() == 0

    on_virtual_time(main())


@pytest.mark.parametrize("state", DONE)
def test_a_claim_that_is_ready_is_answered_at_once(state: str) -> None:
    async def main() -> None:
        on = Path()
        row = on.change("c-1", state)
        assert await on.path.wait("c-1", DONE, 20.0) == row
        assert passed() == 0

    on_virtual_time(main())


@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0, 7.5])
def test_a_claim_that_is_not_ready_is_answered_as_it_is_when_the_time_is_up(seconds: float) -> None:
    async def main() -> None:
        on = Path()
        row = on.change("c-1", "waiting")
        assert await on.path.wait("c-1", DONE, seconds) == row
        assert passed() == seconds

    on_virtual_time(main())


def test_a_signal_with_the_row_answers_without_a_read() -> None:
    async def main() -> None:
        on = Path()
        on.change("c-1", "waiting")
        waiting = await begin(on)
        reads = len(on.claims.reads)
        await asyncio.sleep(1)
        on.signals.claims.changed("c-1", row=make_claim("c-1", "active"))
        assert await waiting == make_claim("c-1", "active")
        assert (passed(), len(on.claims.reads)) == (1, reads)

    on_virtual_time(main())


def test_a_row_that_is_not_ready_makes_the_request_wait_on_without_a_read() -> None:
    async def main() -> None:
        on = Path()
        on.change("c-1", "waiting")
        waiting = await begin(on)
        reads = len(on.claims.reads)
        on.signals.claims.changed("c-1", row=make_claim("c-1", "assigned"))
        await settle()
        assert not waiting.done()
        assert len(on.claims.reads) == reads
        on.signals.claims.changed("c-1", row=make_claim("c-1", "ended"))
        assert await waiting == make_claim("c-1", "ended")

    on_virtual_time(main())


def test_a_signal_without_the_row_makes_the_request_read_it() -> None:
    async def main() -> None:
        on = Path()
        on.change("c-1", "waiting")
        waiting = await begin(on)
        on.claims.reads.clear()
        on.change("c-1", "assigned")
        on.signals.claims.changed("c-1")
        await settle()
        assert not waiting.done()
        assert on.claims.reads == ["get"], "the whole row at once, because it has probably changed"
        row = on.change("c-1", "active")
        on.signals.claims.changed("c-1")
        assert await waiting == row
        assert passed() == 0

    on_virtual_time(main())


def test_a_signal_during_the_read_is_not_missed() -> None:
    async def main() -> None:
        on = Path()
        row = on.change("c-1", "assigned")
        reads = on.claims.get

        async def changes_meanwhile(ids: list[str]) -> list[Claim]:
            found = await reads(ids)
            if row == on.claims.rows["c-1"]:
                on.change("c-1", "active")
                on.signals.claims.changed("c-1")
            return found

        on.claims.get = changes_meanwhile  # type: ignore[method-assign, assignment]
        waiting = await begin(on)
        on.signals.claims.changed("c-1")
        assert await waiting == on.claims.rows["c-1"]
        assert passed() == 0

    on_virtual_time(main())


def test_a_lost_signal_delays_the_answer_until_the_next_look() -> None:
    async def main() -> None:
        on = Path()
        on.change("c-1", "waiting")
        waiting = await begin(on)
        row = on.change("c-1", "active")
        assert await waiting == row
        assert passed() == LOOK_AGAIN

    on_virtual_time(main())


def test_a_look_without_a_signal_reads_only_the_state() -> None:
    async def main() -> None:
        on = Path()
        on.change("c-1", "waiting")
        assert await on.path.wait("c-1", DONE, 10.0) == on.claims.rows["c-1"]
        assert on.claims.reads == ["state"] * 4 + ["get"], "at 0, 3, 6 and 9 s, and the row at the end"

    on_virtual_time(main())


def test_after_a_gap_in_the_notices_a_waiter_reads_only_the_state() -> None:
    async def main() -> None:
        on = Path()
        on.change("c-1", "waiting")
        await begin(on)
        on.claims.reads.clear()
        on.signals.all_changed()
        await settle()
        assert on.claims.reads == ["state"]

    on_virtual_time(main())


def test_a_claim_that_the_database_lost_ends_the_wait() -> None:
    async def main() -> None:
        on = Path()
        on.change("c-1", "waiting")
        waiting = await begin(on)
        del on.claims.rows["c-1"]
        assert await waiting is None
        assert passed() == LOOK_AGAIN

    on_virtual_time(main())


def test_a_replica_that_stops_answers_its_waiters_with_the_current_state() -> None:
    async def main() -> None:
        on = Path()
        row = on.change("c-1", "waiting")
        waiting = await begin(on)
        await asyncio.sleep(1)
        on.signals.stop()
        assert await waiting == row
        assert passed() == 1

    on_virtual_time(main())
