"""An event loop whose clock is virtual, and in which a seed decides whose turn it is."""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Owner:
    """Whom a callback belongs to: one process of the simulated world. What it starts is its own as well."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their birth: a set would be in any order

    def __repr__(self) -> str:
        return f"<{self.name}>"


WORLD = Owner("world")
OWNER: ContextVar[Owner] = ContextVar("owner", default=WORLD)


class Standstill(Exception):
    """Nothing is ready and no timer is set: the simulation waits for itself."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready; when nothing is, time jumps to the next timer. No real time passes, nothing is awaited from outside.

    For each owner callbacks run in the order in which they became ready, as asyncio promises; between owners, who are processes
    of their own, any order may happen, and the seed's does.
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
        """Its callbacks wait; its clock goes on, as it does for a process that is stopped."""
        owner.paused = True
        if owner in self._runnable:
            self._runnable.remove(owner)

    def resume(self, owner: Owner) -> None:
        owner.paused = False
        if owner.ready and owner not in self._runnable:
            self._runnable.append(owner)

    def watch(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """An error in this task ends the run."""
        task.add_done_callback(self._look_at)
        return task

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed = self.failed or error

    def end_all(self) -> None:
        """Nothing of a run may speak up in the next one. Its ports must be cut before."""
        for _ in range(5):  # what is cancelled may start something in its `finally`
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
        pass  # taken out when its time comes

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("nothing comes from outside")

    def _write_to_self(self) -> None:
        pass  # nobody sleeps


@contextmanager
def owned_by(owner: Owner) -> Iterator[None]:
    """What is started within belongs to this owner."""
    token = OWNER.set(owner)
    try:
        yield
    finally:
        OWNER.reset(token)


def start(owner: Owner, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
    """A task of this owner's."""
    with owned_by(owner):
        return asyncio.get_running_loop().create_task(work, name=name)


def later(seconds: float, do: Callable[[], object]) -> asyncio.TimerHandle:
    """The world does it then, whatever becomes of whoever asked for it."""
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
    """An error that nobody caught ends the run, instead of a line in a log."""
    error = about.get("exception")
    if isinstance(error, Exception) and isinstance(loop, VirtualLoop):
        loop.failed = loop.failed or error
