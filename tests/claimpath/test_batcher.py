"""The batcher sends a batch when the one before it has returned, and every caller gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.claimpath.batcher import Batcher


class Sender:
    """Records batches. A batch returns when the test opens the gate."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.fails: set[int] = set()

    async def __call__(self, items: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append(list(items))
        await self.gate.wait()
        if 0 in items:
            raise ConnectionError("the whole batch")
        return [ValueError(str(item)) if item in self.fails else item * 10 for item in items]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_items_that_come_while_a_batch_is_on_its_way_leave_together_in_the_next() -> None:
    async def main() -> None:
        sender = Sender()
        batcher: Batcher[int, int] = Batcher(sender, limit=100)
        first = asyncio.create_task(batcher.add(1))
        await settle()
        others = [asyncio.create_task(batcher.add(n)) for n in (2, 3, 4)]
        await settle()
        assert sender.batches == [[1]], "a lone item leaves at once, and the next batch waits for its return"
        assert not batcher.idle
        sender.gate.set()
        assert await asyncio.gather(first, *others) == [10, 20, 30, 40]
        assert sender.batches == [[1], [2, 3, 4]]
        await settle()
        assert batcher.idle

    asyncio.run(main())


def test_a_batch_is_never_larger_than_its_limit_and_keeps_the_order() -> None:
    async def main() -> None:
        sender = Sender()
        sender.gate.set()
        batcher: Batcher[int, int] = Batcher(sender, limit=2)
        assert await asyncio.gather(*(batcher.add(n) for n in (1, 2, 3, 4, 5))) == [10, 20, 30, 40, 50]
        assert sender.batches == [[1, 2], [3, 4], [5]]

    asyncio.run(main())


def test_an_exception_in_place_of_an_answer_is_raised_at_its_own_caller_only() -> None:
    async def main() -> None:
        sender = Sender()
        sender.gate.set()
        sender.fails = {2}
        batcher: Batcher[int, int] = Batcher(sender, limit=100)
        one, two, three = await asyncio.gather(*(batcher.add(n) for n in (1, 2, 3)), return_exceptions=True)
        assert (one, three) == (10, 30)
        assert isinstance(two, ValueError)

    asyncio.run(main())


def test_a_batch_that_fails_as_a_whole_fails_for_all_of_it_and_the_next_is_sent() -> None:
    async def main() -> None:
        sender = Sender()
        sender.gate.set()
        batcher: Batcher[int, int] = Batcher(sender, limit=2)
        answers = await asyncio.gather(*(batcher.add(n) for n in (0, 1, 2)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ConnectionError, ConnectionError, int]

    asyncio.run(main())


def test_a_caller_that_is_cancelled_does_not_take_the_others_with_it() -> None:
    async def main() -> None:
        sender = Sender()
        batcher: Batcher[int, int] = Batcher(sender, limit=100)
        gone, stays = asyncio.create_task(batcher.add(1)), asyncio.create_task(batcher.add(2))
        await settle()
        gone.cancel()
        sender.gate.set()
        assert await stays == 20
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(main())


def test_a_nudge_sends_a_batch_without_items_and_several_nudges_are_one() -> None:
    async def main() -> None:
        sender = Sender()
        batcher: Batcher[int, int] = Batcher(sender, limit=100)
        batcher.nudge()
        await settle()
        batcher.nudge()
        batcher.nudge()
        sender.gate.set()
        await settle()
        assert sender.batches == [[], []], "one at once, and one for the nudges that came meanwhile"
        assert batcher.idle

    asyncio.run(main())
