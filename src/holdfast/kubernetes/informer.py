"""Know all objects of one kind without asking each time: list once, then follow the changes; when in doubt, list again.

What it knows may be a moment old and is never authority: everything irreversible is confirmed by a direct read.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from ..ports.cluster import ClusterUnavailable
from .api import Api, ApiRefused, Status

log = structlog.get_logger()

PAGE = 500  # objects: the API server's own advice
WATCH_SECONDS = (240, 360)  # chosen anew each time, so that replicas do not come back all at once
SILENT = 90.0  # bookmarks come every 60 s: a stream without a line for longer is dead, whatever TCP says
PAUSES = (0.2, 30.0)
GONE = 410


class Item(Protocol):
    @property
    def metadata(self) -> Any: ...


T = TypeVar("T", bound=Item)


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Bookmark(msgspec.Struct, frozen=True):
    """An object of which only the version is filled in; its other fields may be null where a real one's never are."""

    metadata: ListMeta


class Expired(Exception):
    """What we knew is too old to go on from."""


class Informer(Generic[T]):
    def __init__(self, api: Api, path: str, selector: str | None, kind: type[T], changed: Callable[[set[str]], None]) -> None:
        self._api, self._path, self._kind = api, path, kind
        self._select = {"labelSelector": selector} if selector else {}
        self._changed = changed
        self._known: dict[str, T] = {}
        self._version: str | None = None  # None: a list must come first
        self._heard = 0.0
        self._watching = False
        self._lists = msgspec.json.Decoder(_page_of(kind))
        self._items = msgspec.json.Decoder(kind)
        self._events = msgspec.json.Decoder(Event)

    @property
    def fresh(self) -> bool:
        """Whether a watch that is alive stands behind what we know."""
        return self._watching and time.monotonic() - self._heard < SILENT

    def known(self) -> dict[str, T]:
        return self._known

    def wrote(self, item: T) -> None:
        """The answer to a write of our own: newer than the watch, and no news to whoever wrote."""
        self._note(item)

    def saw(self, item: T) -> None:
        """What a read or a list showed. Others did it, and who read may not judge it: told now, as the watch will not again."""
        if self._note(item):
            self._changed({item.metadata.name})

    def _note(self, item: T) -> bool:
        old = self._known.get(item.metadata.name)
        newer = self._version is not None and (old is None or _version(old) < _version(item))
        if newer:
            self._known[item.metadata.name] = item
        return newer

    def note_absent(self, name: str) -> None:
        self._known.pop(name, None)

    async def list(self) -> tuple[dict[str, T], str]:
        """All of them, straight from the source. An expired page begins again: half a list is none."""
        for _ in range(3):
            with contextlib.suppress(Expired):
                return await self._list()
        raise ClusterUnavailable("a list expired again and again while it was read")

    async def _list(self) -> tuple[dict[str, T], str]:
        found: dict[str, T] = {}
        more: dict[str, str] = {}
        while True:
            try:
                content = await self._api.get(self._path, {"limit": str(PAGE), **self._select, **more}, timeout=30.0)
            except ApiRefused as refused:
                if refused.code == GONE:
                    raise Expired from None
                raise ClusterUnavailable(f"the API server refused a list: {refused.status.reason}") from refused
            try:
                page = self._lists.decode(content)
            except msgspec.MsgspecError as error:
                raise ClusterUnavailable(f"a list cannot be read: {error}") from error
            found.update((item.metadata.name, item) for item in page.items)
            if not page.metadata.continue_:
                return found, page.metadata.resource_version
            more = {"continue": page.metadata.continue_}

    async def run(self) -> None:
        """For as long as the replica lives."""
        pause = PAUSES[0]
        while True:
            try:
                if self._version is None:
                    await self._relist()
                await self._watch()
                pause = PAUSES[0]
            except Expired:
                self._version = None
                pause = PAUSES[0]
            except (ClusterUnavailable, ApiRefused) as error:
                log.warning("not watching", path=self._path, reason=type(error).__name__)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause = min(pause * 2, PAUSES[1])
            except msgspec.MsgspecError as error:
                # One object that we cannot read must not blind us for ever to the others: begin again, and say so.
                log.error("an object cannot be read", path=self._path, reason=str(error))
                self._version = None
                await asyncio.sleep(PAUSES[1])
            except Exception:  # nobody starts us again: a defect must not leave the replica blind for the rest of its life (P6)
                log.exception("watching failed", path=self._path)
                self._version = None
                await asyncio.sleep(PAUSES[1])

    async def _relist(self) -> None:
        found, version = await self.list()
        before, self._known = self._known, found
        self._version, self._heard = version, time.monotonic()
        gone = before.keys() - found.keys()  # nobody told us of these: the list itself does
        new = {name for name, item in found.items() if name not in before or _version(before[name]) != _version(item)}
        if gone or new:
            self._changed(gone | new)

    async def _watch(self) -> None:
        assert self._version is not None
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 - jitter
        }
        try:
            async with self._api.stream(self._path, params | self._select, SILENT) as lines:
                self._heard, self._watching = time.monotonic(), True
                async for line in lines:
                    self._heard = time.monotonic()
                    self._take(self._events.decode(line))
        except ApiRefused as refused:
            if refused.code == GONE:
                raise Expired from None
            raise
        finally:
            self._watching = False

    def _take(self, event: Event) -> None:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            if status.code == GONE:
                raise Expired
            raise ClusterUnavailable(f"the watch ended with {status.code} {status.reason}")
        if event.type == "BOOKMARK":
            self._version = msgspec.json.decode(event.object, type=Bookmark).metadata.resource_version
            return
        item = self._items.decode(event.object)
        self._version = item.metadata.resource_version
        name = item.metadata.name
        old = self._known.get(name)
        if event.type == "DELETED":
            self._known.pop(name, None)
        elif old is not None and _version(old) == _version(item):
            return  # the answer to a call of our own was the same, and was told then where it was news
        elif old is None or _version(old) < _version(item):
            self._known[name] = item
        self._changed({name})


def _version(item: Item) -> int:
    return int(item.metadata.resource_version)


def _page_of(kind: type[T]) -> Any:
    return msgspec.defstruct("Page", [("metadata", ListMeta), ("items", list[kind])])  # type: ignore[valid-type]
