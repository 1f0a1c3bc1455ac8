"""Call the API server. A call returns the answer or raises: ApiRefused, ClusterUnavailable, or OutcomeUnknown if a write may
have happened.

Kubernetes answers every refusal with a Status object. We decide by its code and reason, not by its text, because the text
repeats what users wrote. The one exception is an answer that only its fixed text distinguishes from others (FAILED_WEBHOOK).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from ..ports.cluster import ClusterUnavailable, OutcomeUnknown
from .access import Access

READ_SECONDS = 10.0
WRITE_SECONDS = 10.0
MERGE = "application/merge-patch+json"
JSON = "application/json"
FAILED_WEBHOOK = 'Internal error occurred: failed calling webhook "'  # message prefix if a webhook could not be called


class Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""
    causes: list[Cause] = []


class Status(msgspec.Struct, frozen=True):
    """The answer that Kubernetes sends instead of an object when a call fails."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None

    @property
    def causes(self) -> list[Cause]:
        return self.details.causes if self.details is not None else []


class ApiRefused(Exception):
    """The API server refused the call: a 4xx, or a create whose admission webhook could not be called. The text may contain
    what a user wrote."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"{status.code} {status.reason}: {status.message}")
        self.status = status

    @property
    def code(self) -> int:
        return self.status.code


class Api:
    """Uses separate connections for calls and for watches, so that a watch never delays a write."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._calls: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None

    async def get(self, path: str, params: dict[str, str] | None = None, timeout: float = READ_SECONDS) -> bytes:
        return await self._call("GET", path, None, JSON, timeout, params or {}, writes=False)

    async def post(self, path: str, body: Any, params: dict[str, str] | None = None, timeout: float = WRITE_SECONDS) -> bytes:
        return await self._call("POST", path, body, JSON, timeout, params or {}, writes=True)

    async def ask(self, path: str, body: Any, params: dict[str, str] | None = None, timeout: float = READ_SECONDS) -> bytes:
        """Send a POST that changes nothing, such as a review or a dry run."""
        return await self._call("POST", path, body, JSON, timeout, params or {}, writes=False)

    async def put(self, path: str, body: Any, timeout: float = WRITE_SECONDS) -> bytes:
        return await self._call("PUT", path, body, JSON, timeout, {}, writes=True)

    async def patch(self, path: str, body: Any, timeout: float = WRITE_SECONDS) -> bytes:
        return await self._call("PATCH", path, body, MERGE, timeout, {}, writes=True)

    async def delete(self, path: str, body: Any, timeout: float = WRITE_SECONDS) -> bytes:
        return await self._call("DELETE", path, body, JSON, timeout, {}, writes=True)

    async def _call(
        self, method: str, path: str, body: Any, kind: str, timeout: float, params: dict[str, str], *, writes: bool
    ) -> bytes:
        data = msgspec.json.encode(body) if body is not None else None
        if self._calls is None:
            self._calls = self._session()
        for refused in (False, True):
            sent = False
            try:
                async with asyncio.timeout(timeout):
                    headers = await self._access.headers(refused=refused)
                    sent = True
                    async with self._calls.request(
                        method,
                        self._access.server + path,
                        params=params,
                        data=data,
                        headers=headers | ({"Content-Type": kind} if data is not None else {}),
                        ssl=self._access.tls,
                    ) as answer:
                        content = await answer.read()
                        if answer.status == 401 and not refused:
                            continue  # our token was rotated, so try once more with the new token
                        return _judged(answer.status, content, writes, creates=method == "POST")
            except aiohttp.ClientConnectorError as error:
                raise ClusterUnavailable(f"the API server cannot be reached: {error.strerror or type(error).__name__}") from error
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                message = f"the API server did not answer: {type(error).__name__}"
                raise (OutcomeUnknown if writes and sent else ClusterUnavailable)(message) from error
        raise AssertionError("two tries end above")

    @asynccontextmanager
    async def stream(self, path: str, params: dict[str, str], idle: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a streamed answer. Raises ClusterUnavailable when nothing arrives for `idle` seconds."""
        if self._watches is None:
            self._watches = self._session()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_SECONDS, sock_read=idle)
        try:
            headers = await self._access.headers()
            async with self._watches.get(
                self._access.server + path, params=params, headers=headers, ssl=self._access.tls, timeout=timeout
            ) as answer:
                if answer.status != 200:
                    if answer.status == 401:
                        await self._access.headers(refused=True)
                    _judged(answer.status, await answer.read(), writes=False)
                yield _lines(answer.content)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ClusterUnavailable(f"the watch broke: {type(error).__name__}") from error

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=60)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=True)

    async def close(self) -> None:
        for session in (self._calls, self._watches):
            if session is not None:
                await session.close()


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. aiohttp's own line reader has a length limit, and a pod can be longer than that."""
    rest = bytearray()
    async for chunk, _ in content.iter_chunks():
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            rest += chunk[start:end]
            if rest:
                yield bytes(rest)
            rest.clear()
            start = end + 1
        rest += chunk[start:]


def status_of(code: int, content: bytes) -> Status:
    try:
        status = msgspec.json.decode(content, type=Status)
    except msgspec.DecodeError:  # a 429 is plain text, and proxies send other formats
        status = Status(code, "", content[:200].decode(errors="replace").strip())
    return status if status.code else msgspec.structs.replace(status, code=code)


def _judged(code: int, content: bytes, writes: bool, creates: bool = False) -> bytes:
    if code < 300:
        return content
    status = status_of(code, content)
    if code >= 500 and not (creates and code == 500 and _webhook_failed(status)):
        message = f"the API server answered {code} {status.reason}"
        raise (OutcomeUnknown if writes else ClusterUnavailable)(message)
    if code in (401, 408, 429):
        raise ClusterUnavailable(f"the API server answered {code} {status.reason or 'and did not act'}")
    raise ApiRefused(status)


def _webhook_failed(status: Status) -> bool:
    """Returns whether a required admission webhook could not be called. Then nothing was stored, because admission runs before
    storage. No other 5xx proves this."""
    return status.reason == "InternalError" and status.message.startswith(FAILED_WEBHOOK)
