"""Background tasks end when their replica stops, also if a cancellation is lost on the way."""

import asyncio

from holdfast.tasks import end_all


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    lost = 0

    async def loop() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:  # as `asyncio.wait_for` does if the result arrives at the same moment
                lost += 1
                if lost > 2:
                    raise

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)  # so that it has begun
    async with asyncio.timeout(20):
        await end_all([task])
    assert task.cancelled()
    assert lost == 3


async def test_errors_of_ended_tasks_hold_up_nothing() -> None:
    async def fails() -> None:
        raise ValueError

    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    await end_all([task, asyncio.create_task(asyncio.sleep(3600))])
    assert isinstance(task.exception(), ValueError)
