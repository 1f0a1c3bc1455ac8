"""Cache all objects of one kind: list them once, then watch the changes. When in doubt, list again.

The cache may be slightly old. Everything irreversible is therefore confirmed by a direct read.
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

PAGE = 500  # objects per page, as Kubernetes recommends
WATCH_SECONDS = (240, 360)  # a random duration for each watch, so that replicas do not all reconnect at the same time
SILENT = 90.0  # bookmarks arrive every 60 s, so a stream that is silent for longer is dead, even if TCP still looks connected
PAUSES = (0.2, 30.0)
GONE = 410


class Item(Protocol):
    @property
    def metadata(self) -> Any: ...


T = TypeVar("T", bound=Item)


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Bookmark(msgspec.Struct, frozen=True):
    """A watch event that carries only a version. Its other fields may be null, which those of a real object never are."""

    metadata: ListMeta


class Expired(Exception):
    """The API server no longer has the version from which we want to continue (410 Gone)."""


class Informer(Generic[T]):
    def __init__(self, api: Api, path: str, selector: str | None, kind: type[T], changed: Callable[[set[str]], None]) -> None:
        self._api, self._path = api, path
        self._select = {"labelSelector": selector} if selector else {}
        self._changed = changed
        self._known: dict[str, T] = {}
        self._version: str | None = None  # None until a list was read
        self._heard = 0.0
        self._watching = False
        self._lists = msgspec.json.Decoder(_page_of(kind))
        self._items = msgspec.json.Decoder(kind)
        self._events = msgspec.json.Decoder(WatchEvent)

    @property
    def fresh(self) -> bool:
        """Returns whether a live watch keeps the cache up to date."""
        return self._watching and time.monotonic() - self._heard < SILENT

    def known(self) -> dict[str, T]:
        return self._known

    def wrote(self, item: T) -> None:
        """Store the answer to our own write. No change is reported, because the caller already knows it."""
        self._note(item)

    def saw(self, item: T) -> None:
        """Store an object from a read or a list, and report it if it is new. Otherwise the change would never be reported,
        because the watch skips versions that are already known."""
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
        """Returns all objects and the list's version, read from the API server. Starts again if a page expires, so that a partial
        list is never returned."""
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
        """Watch until cancelled."""
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
                log.warning("the watch failed; trying again", path=self._path, reason=type(error).__name__)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause = min(pause * 2, PAUSES[1])
            except msgspec.MsgspecError as error:
                # Log it and list again, because one unreadable object must not hide all the others forever.
                log.error("an object cannot be read", path=self._path, reason=str(error))
                self._version = None
                await asyncio.sleep(PAUSES[1])
            except Exception:  # this task is never restarted, so a bug here must not stop the watch forever (P6)
                log.exception("watching failed", path=self._path)
                self._version = None
                await asyncio.sleep(PAUSES[1])

    async def _relist(self) -> None:
        found, version = await self.list()
        before, self._known = self._known, found
        self._version, self._heard = version, time.monotonic()
        gone = before.keys() - found.keys()  # no watch event reported these deletions
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

    def _take(self, event: WatchEvent) -> None:
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
            return  # we stored this version from one of our own calls, and reported it then if it was new
        elif old is None or _version(old) < _version(item):
            self._known[name] = item
        self._changed({name})


def _version(item: Item) -> int:
    return int(item.metadata.resource_version)


def _page_of(kind: type[T]) -> Any:
    return msgspec.defstruct("Page", [("metadata", ListMeta), ("items", list[kind])])  # type: ignore[valid-type]
