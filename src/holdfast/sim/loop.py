"""An event loop with a virtual clock, in which the seed decides which process runs next."""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Owner:
    """The simulated process to which a callback belongs. Tasks that the callback starts belong to it too."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}  # a dict and not a set, because its order is always the same

    def __repr__(self) -> str:
        return f"<{self.name}>"


WORLD = Owner("world")
OWNER: ContextVar[Owner] = ContextVar("owner", default=WORLD)


class Standstill(Exception):
    """Nothing is ready and no timer is set, so the simulation would wait forever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs the callbacks that are ready; if there are none, time jumps to the next timer. It never waits in real time or for I/O.

    The callbacks of one owner run in the order in which they became ready, as asyncio guarantees. Owners are separate processes,
    so the seed chooses the order between them.
    """

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, source: random.Random, start: float = 1000.0) -> None:
        super().__init__()
        self._source = source
        self._now = start
        self._runnable: list[Owner] = []
        self.steps = 0
        self.failed: BaseException | None = None
        self.set_task_factory(_owned_task)  # type: ignore[arg-type]
        self.set_exception_handler(_keep)

    def time(self) -> float:
        return self._now

    def _call_soon(self, callback: Callable[..., object], args: tuple[object, ...], context: Context | None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def _enqueue(self, handle: asyncio.Handle) -> None:
        owner: Owner = handle._context.get(OWNER, WORLD)  # type: ignore[attr-defined]
        owner.ready.append(handle)
        if len(owner.ready) == 1 and not owner.paused:
            self._runnable.append(owner)

    def pause(self, owner: Owner) -> None:
        """Stop running the owner's callbacks. Its clock continues, as for a process that was stopped by SIGSTOP."""
        owner.paused = True
        if owner in self._runnable:
            self._runnable.remove(owner)

    def resume(self, owner: Owner) -> None:
        owner.paused = False
        if owner.ready and owner not in self._runnable:
            self._runnable.append(owner)

    def watch(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """End the run if this task raises."""
        task.add_done_callback(self._look_at)
        return task

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed = self.failed or error

    def end_all(self) -> None:
        """Cancel all tasks, so that nothing of this run acts in the next run. The ports must be cut before."""
        for _ in range(5):  # a cancelled task may start another in its `finally`
            tasks = asyncio.all_tasks(self)
            for task in tasks:
                task.cancel()
            self.failed = None
            with suppress(Exception):
                self.run_until_complete(asyncio.wait_for(_gathered(tasks), 1.0))
        self.close()

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() <= self._now):
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._enqueue(timer)
        if self._runnable:
            self._turn()
        elif timers:
            self._now = timers[0].when()
        elif not self._stopping:  # type: ignore[attr-defined]
            raise Standstill

    def _turn(self) -> None:
        count = len(self._runnable)
        at = 0 if count == 1 else int(self._source.random() * count)
        owner = self._runnable[at]
        handle = owner.ready.popleft()
        if not owner.ready:
            self._runnable.pop(at)
        self.steps += 1
        if not handle.cancelled():
            handle._run()
        if self.failed is not None:
            failed, self.failed = self.failed, None
            raise failed

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # removed when its time comes

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("a virtual loop has no I/O events")

    def _write_to_self(self) -> None:
        pass  # the loop never sleeps, so it needs no wake-up


@contextmanager
def owned_by(owner: Owner) -> Iterator[None]:
    """Tasks that are started in this context belong to this owner."""
    token = OWNER.set(owner)
    try:
        yield
    finally:
        OWNER.reset(token)


def start(owner: Owner, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
    """Start a task that belongs to this owner."""
    with owned_by(owner):
        return asyncio.get_running_loop().create_task(work, name=name)


def later(seconds: float, do: Callable[[], object]) -> asyncio.TimerHandle:
    """Call this later as the world, so that it happens even if the calling process is dead by then."""
    context = copy_context()
    context.run(OWNER.set, WORLD)
    return asyncio.get_running_loop().call_later(seconds, do, context=context)


async def _gathered(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _owned_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Context | None = None, **options: Any
) -> asyncio.Task[Any]:
    owner = context.get(OWNER, WORLD) if context is not None else OWNER.get()
    task = asyncio.Task(work, loop=loop, context=context, **options)
    owner.tasks[task] = None
    task.add_done_callback(lambda done: owner.tasks.pop(done, None))
    return task


def _keep(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
    """End the run on an uncaught error. Otherwise asyncio would only log it."""
    error = about.get("exception")
    if isinstance(error, Exception) and isinstance(loop, VirtualLoop):
        loop.failed = loop.failed or error
