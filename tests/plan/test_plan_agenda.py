"""The clock of a trace: entries come at their times, and only idle time is skipped, in whole steps."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from holdfast.plan.agenda import LOOK, STEP, Agenda
from holdfast.sim.loop import WORLD, VirtualLoop


def on_virtual_time(scenario: Coroutine[None, None, None]) -> float:
    """Runs a scenario, and returns the virtual seconds that it took."""
    loop = VirtualLoop(random.Random(1), 1000.0)
    try:
        loop.run_until_complete(scenario)
        return loop.time() - 1000.0
    finally:
        loop.close()
        WORLD.ready.clear()  # it is global, and tasks of this loop must not appear in the next


@asynccontextmanager
async def running(agenda: Agenda) -> AsyncIterator[None]:
    task = asyncio.ensure_future(agenda.run(leaps=True))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_rest_is_left_out_in_whole_steps_and_what_was_before_is_older_by_it() -> None:
    aged: list[float] = []

    async def scenario() -> None:
        agenda = Agenda(lambda: asyncio.sleep(0, True), aged.append)
        async with running(agenda):
            await agenda.at(1001.5)
            assert agenda.now() == pytest.approx(1001.5, abs=0.01)
            assert agenda.leapt == sum(aged)
            await agenda.after(1.9)  # too near to skip time

    took = on_virtual_time(scenario())
    assert aged == [1000.0]
    assert aged[0] % STEP == 0
    assert took == pytest.approx(1.5 + 1.9, abs=0.01)


def test_nothing_is_left_out_while_the_fleet_moves() -> None:
    looked = 0

    async def moving() -> bool:
        nonlocal looked
        looked += 1
        return False

    async def scenario() -> None:
        agenda = Agenda(moving, lambda by: None)
        async with running(agenda):
            await agenda.at(100.0)
            assert agenda.leapt == 0

    assert on_virtual_time(scenario()) == pytest.approx(100.0, abs=0.01)
    assert 90 < looked <= 100 / LOOK


def test_an_entry_is_given_time_to_show_before_the_next_leap() -> None:
    """A new entry is not yet visible to the code that looks for idle time."""

    async def scenario() -> None:
        agenda = Agenda(lambda: asyncio.sleep(0, True), lambda by: None)
        async with running(agenda):
            far = agenda.at(500.0)
            await agenda.at(100.0)
            before = agenda.leapt
            await asyncio.sleep(LOOK / 2)
            assert agenda.leapt == before
            await far
            assert agenda.leapt > before

    on_virtual_time(scenario())


def test_entries_come_in_order_and_a_cancelled_entry_delays_no_other() -> None:
    async def scenario() -> None:
        agenda = Agenda(lambda: asyncio.sleep(0, False), lambda by: None)
        async with running(agenda):
            order: list[float] = []
            for moment in (30.0, 10.0, 20.0):
                agenda.at(moment).add_done_callback(lambda _, moment=moment: order.append(moment))  # type: ignore[misc]
            agenda.at(15.0).cancel()
            await agenda.at(40.0)
            assert order == [10.0, 20.0, 30.0]

    on_virtual_time(scenario())
