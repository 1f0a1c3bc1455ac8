"""The same client for code without an event loop. A private event loop on its own thread does the work.

A thread cannot be interrupted from outside, so a lost lease is reported in three ways: `worker.lost` is set,
`worker.check()` raises LeaseLost, and so does leaving the block.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from .answers import Claim, Page
from .client import Client
from .context import resolve
from .errors import LeaseLost
from .holding import Held, Holding
from .output import OutputPiece, ignore_truncation
from .requests import ClaimOptions

P = ParamSpec("P")
T = TypeVar("T")

CLEAN_UP_SECONDS = 6.0  # seconds in which calls in progress may end; more than holding.GIVE_UP, which limits the longest of them


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="holdfast-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the caller's thread: the call must not continue in the background
            raise

    def close(self) -> None:
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_finish(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _finish() -> None:
    """Waits until cancelled calls have cleaned up, at most CLEAN_UP_SECONDS, and cancels the rest."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=CLEAN_UP_SECONDS)
        for task in late:
            task.cancel()


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.thread.run(method(self.client, *args, **kwargs))

    return call


class SyncPage(Generic[T]):
    """One page of a list. `for item in page` also yields the items of the following pages, which it reads when needed."""

    def __init__(self, thread: LoopThread, page: Page[T]) -> None:
        self.items, self.next, self.previous = page.items, page.next, page.previous
        self._thread, self._page = thread, page

    def __iter__(self) -> Iterator[T]:
        page: Page[T] | None = self._page
        while page is not None:
            yield from page.items
            page = self._thread.run(page.following())


def _paging(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, Page[T]]],
) -> Callable[Concatenate[SyncClient, P], SyncPage[T]]:
    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> SyncPage[T]:
        return SyncPage(self.thread, self.thread.run(method(self.client, *args, **kwargs)))

    return call


class SyncClient:
    """`with SyncClient("http://127.0.0.1:7070", token) as client: …`; its methods are those of `Client`."""

    def __init__(self, urls: str | Sequence[str], token: str, *, patience: float = 30.0) -> None:
        self.client = Client(urls, token, patience=patience)
        self.thread = LoopThread()

    claim = _blocking(Client.claim)
    list_claims = _paging(Client.list_claims)
    get_claim = _blocking(Client.get_claim)
    until = _blocking(Client.until)
    renew = _blocking(Client.renew)
    release = _blocking(Client.release)
    cancel = _blocking(Client.cancel)
    send_input = _blocking(Client.send_input)
    get_input = _blocking(Client.get_input)
    list_pools = _paging(Client.list_pools)
    get_pool = _blocking(Client.get_pool)
    put_pool = _blocking(Client.put_pool)
    delete_pool = _blocking(Client.delete_pool)
    freeze = _blocking(Client.freeze)
    thaw = _blocking(Client.thaw)
    list_workers = _paging(Client.list_workers)
    get_worker = _blocking(Client.get_worker)
    retire = _blocking(Client.retire)
    list_tenants = _paging(Client.list_tenants)
    get_tenant = _blocking(Client.get_tenant)
    put_tenant = _blocking(Client.put_tenant)
    delete_tenant = _blocking(Client.delete_tenant)
    apply = _blocking(Client.apply)
    scale = _blocking(Client.scale)
    list_events = _paging(Client.list_events)
    explain = _blocking(Client.explain)
    list_duties = _paging(Client.list_duties)
    list_replicas = _paging(Client.list_replicas)
    brake = _blocking(Client.brake)
    release_brake = _blocking(Client.release_brake)
    set_brake = _blocking(Client.set_brake)
    recovery = _blocking(Client.recovery)
    decide_recovery = _blocking(Client.decide_recovery)
    doctor = _blocking(Client.doctor)
    metrics = _blocking(Client.metrics)
    list_tokens = _paging(Client.list_tokens)
    create_token = _blocking(Client.create_token)
    revoke_token = _blocking(Client.revoke_token)
    whoami = _blocking(Client.whoami)

    def output(
        self,
        claim: str | Claim,
        *,
        offset: int = 0,
        follow: bool = True,
        truncated: Callable[[int], object] = lambda _: None,
    ) -> Iterator[bytes]:
        return self._each(self.client.output(claim, offset=offset, follow=follow, truncated=truncated))

    def output_pieces(
        self,
        claim: str | Claim,
        *,
        offset: int = 0,
        follow: bool = True,
        truncated: Callable[[int, int], object] = ignore_truncation,
    ) -> Iterator[OutputPiece]:
        return self._each(self.client.output_pieces(claim, offset=offset, follow=follow, truncated=truncated))

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        async def following() -> T | None:
            return await anext(items, None)

        try:
            while (item := self.thread.run(following())) is not None:
                yield item
        finally:
            self.thread.run(items.aclose())

    def close(self) -> None:
        if not self.thread.loop.is_closed():
            self.thread.run(self.client.close())
            self.thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SyncWorker(Held):
    """A held worker. `ended` is set when it is known that the claim has ended, `lost` if it was taken from its holder."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        self.ended = threading.Event()
        self.lost = threading.Event()
        self._loss: LeaseLost | None = None

    def check(self) -> None:
        """Raises LeaseLost if the worker is no longer held. Call it between two steps of the work."""
        if self._loss is not None:
            raise self._loss

    def note_end(self, outcome: str | None) -> None:
        super().note_end(outcome)
        self.ended.set()

    def lose(self, loss: LeaseLost) -> None:
        self._loss = loss
        self.lost.set()


class claim:
    """`with holdfast.client.sync.claim("duckdb", tenant="acme") as worker:` holds a worker for the block.

    While it waits for the worker, `news` is called with the claim, on another thread.
    """

    def __init__(
        self,
        pool: str,
        *,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        news: Callable[[Claim], object] | None = None,
        **options: Unpack[ClaimOptions],
    ) -> None:
        where = resolve(url, token)
        self._where, self._pool, self._options, self._news = where, pool, options, news

    def __enter__(self) -> SyncWorker:
        self._sync = SyncClient(self._where.url, self._where.token)
        self._holding = Holding(self._sync.client, self._pool, self._options, self._news)
        try:
            self._worker = self._sync.thread.run(self._take())
        except BaseException:
            self._sync.close()
            raise
        return self._worker

    async def _take(self) -> SyncWorker:
        taken = await self._holding.take()
        worker = SyncWorker(taken)
        self._holding.keep(taken, worker, worker.lose)
        return worker

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._sync.thread.run(self._holding.let_go(self._worker))
        finally:
            self._sync.close()
        lost = self._holding.lost
        if lost is not None:
            self._worker.lose(lost)
            if error is None:
                raise lost
