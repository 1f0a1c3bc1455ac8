"""The virtual event loop: time jumps, the seed decides the order of tasks, a paused owner waits, and an error ends the run."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest

from holdfast.sim.loop import OWNER, WORLD, Owner, Standstill, VirtualLoop, later, start

Scenario = Callable[[], Awaitable[object]]


def play(scenario: Scenario, seed: int = 1) -> VirtualLoop:
    loop = VirtualLoop(random.Random(seed))
    try:
        loop.run_until_complete(scenario())  # type: ignore[arg-type]
    finally:
        loop.close()
    return loop


def test_hours_pass_in_no_time() -> None:
    async def scenario() -> None:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(36_000)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(36_000)

    begun = time.monotonic()
    play(scenario)
    assert time.monotonic() - begun < 5


def test_what_is_started_belongs_to_its_starter() -> None:
    one, seen = Owner("one"), list[Owner]()

    async def inner() -> None:
        seen.append(OWNER.get())

    async def outer() -> None:
        await asyncio.create_task(inner())

    async def scenario() -> None:
        await start(one, outer())
        later(1, lambda: seen.append(OWNER.get()))
        await asyncio.sleep(2)

    play(scenario)
    assert seen == [one, WORLD]
    assert not one.tasks


def test_a_paused_owner_stands_still_while_its_clock_goes_on() -> None:
    one, ticks = Owner("one"), list[float]()

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(asyncio.get_running_loop().time() - 1000)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        ticking = start(one, tick())
        await asyncio.sleep(2.5)
        loop.pause(one)
        await asyncio.sleep(60)
        assert len(ticks) == 2
        loop.resume(one)
        await asyncio.sleep(2)
        ticking.cancel()

    play(scenario)
    assert ticks == pytest.approx([1, 2, 62.5, 63.5])


def orders(seed: int) -> str:
    ran = list[str]()

    async def speak(name: str) -> None:
        for _ in range(5):
            ran.append(name)
            await asyncio.sleep(0)

    async def scenario() -> None:
        await asyncio.gather(*(start(Owner(name), speak(name)) for name in "abc"))

    play(scenario, seed)
    return "".join(ran)


def test_the_seed_decides_whose_turn_it_is() -> None:
    assert orders(1) == orders(1)
    assert len({orders(seed) for seed in range(20)}) > 10


def test_within_one_owner_callbacks_keep_their_order() -> None:
    ran = list[int]()

    async def scenario() -> None:
        for number in range(50):
            asyncio.get_running_loop().call_soon(ran.append, number)
        await asyncio.sleep(1)

    play(scenario)
    assert ran == list(range(50))


def test_waiting_for_nothing_is_an_error() -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Standstill):
        play(scenario)


def test_an_uncaught_error_ends_the_run() -> None:
    async def scenario() -> None:
        def fail() -> None:
            raise ValueError("lost")

        later(1, fail)
        await asyncio.sleep(10)

    with pytest.raises(ValueError, match="lost"):
        play(scenario)
