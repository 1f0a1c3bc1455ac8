"""Sends requests to one of several replicas, and repeats those that are safe to repeat.

Any replica serves any request, so after a replica that cannot be reached the next one is tried. A request that was not
sent is always tried again; a request that a replica may have received is repeated only if the caller declares it `safe`.
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp

from ..unix_socket import NotPrivate, check_private, to_path
from .errors import HoldfastError, NotConfigured, Unavailable, Unreachable, refusal

T = TypeVar("T")
Params = Mapping[str, str | int | bool | None]

CONNECT_TIMEOUT = 3.0  # seconds; the longest that a replica on a dead host may delay a request
ANSWER_TIMEOUT = 10.0  # seconds, in addition to the time that the server may wait before it answers
KEEP_ALIVE = 4.0  # seconds; well below the 75 s after which our server closes an idle connection
LATE = 2.0  # seconds, in addition to the time that the server may wait
FIRST_PAUSE = 0.2  # seconds, doubling
LONGEST_PAUSE = 5.0


class RawResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def addresses(urls: str | Sequence[str]) -> list[str]:
    """Returns the replicas' addresses. A string may hold several, separated by commas."""
    found = [url.strip().rstrip("/") for part in ([urls] if isinstance(urls, str) else urls) for url in part.split(",")]
    found = [url for url in found if url]
    if not found:
        raise NotConfigured("no server address given")
    for url in found:
        parts = urlsplit(url)
        if to_path(url) is not None:
            continue
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NotConfigured(f"{url!r} is not an address such as http://127.0.0.1:7070 or unix:///path")
    return found


class Transport:
    """Sends HTTP requests to the first replica that answers."""

    def __init__(
        self,
        urls: str | Sequence[str],
        token: str,
        *,
        patience: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.urls = addresses(urls)
        self.on_delay: Callable[[HoldfastError], None] | None = None  # called once per request that takes longer, with the reason
        self.on_late: Callable[[HoldfastError | None], None] | None = None  # called when a request has no answer for LATE seconds
        self.on_answer: Callable[[], None] | None = None  # called when such a request has ended, with or without an answer
        self.patience = patience  # seconds for which a request to an unreachable or unavailable server is repeated
        self.skew = 0.0  # seconds by which the server's clock is ahead of ours
        self.clock = clock
        self.sleep = sleep
        self._token = token
        self._at = 0
        self._sessions: dict[Path | None, aiohttp.ClientSession] = {}  # by socket; None for addresses of hosts

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        safe: bool = False,
        wait: float = 0.0,
    ) -> RawResponse:
        """Returns the answer of one replica. `wait` is the time, in seconds, that the server may take before it answers."""
        timeout = aiohttp.ClientTimeout(total=wait + ANSWER_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
        headers = {"Content-Type": "application/json"} if body is not None else {}

        async def once(url: str) -> RawResponse:
            response = await self._send(method, url, path, params, headers, timeout, body)
            try:
                return RawResponse(response.status, response.headers, await response.read())
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise Unreachable(_text(error), sent=True) from error
            finally:
                response.release()

        return await self.try_replicas(once, safe=safe, wait=wait)

    async def stream(
        self,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        quiet: float,
    ) -> aiohttp.ClientResponse:
        """Opens a GET whose body the caller reads and closes. It fails after `quiet` seconds without a byte."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=quiet)

        async def once(url: str) -> aiohttp.ClientResponse:
            return await self._send("GET", url, path, params, headers or {}, timeout, None)

        return await self.try_replicas(once, safe=True)

    async def try_replicas(self, once: Callable[[str], Awaitable[T]], *, safe: bool, wait: float = 0.0) -> T:
        """Tries each replica once, then pauses and tries them all again, until `patience` is over. Calls `on_late` if there is no
        answer LATE seconds after `wait`."""
        failures: list[HoldfastError] = []
        if self.on_late is None:
            return await self._rounds(once, safe, failures)
        late = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(wait + LATE, self._report_late, late, failures)
        try:
            return await self._rounds(once, safe, failures)
        finally:
            timer.cancel()
            if late.is_set() and self.on_answer is not None:
                self.on_answer()

    def _report_late(self, late: asyncio.Event, failures: list[HoldfastError]) -> None:
        if self.on_late is not None:
            late.set()
            self.on_late(failures[-1] if failures else None)

    async def _rounds(self, once: Callable[[str], Awaitable[T]], safe: bool, failures: list[HoldfastError]) -> T:
        gives_up_at: float | None = None
        pause = FIRST_PAUSE
        while True:
            errors: dict[str, HoldfastError] = {}
            for _ in self.urls:
                url = self.urls[self._at]
                try:
                    return await once(url)
                except Unavailable as error:
                    if not safe:
                        raise
                    errors[url] = error
                except Unreachable as error:
                    if error.sent and not safe:
                        raise Unreachable(
                            f"{url} may have received the request, but its answer was lost: {error}", sent=True
                        ) from error
                    errors[url] = error
                self.switch_from(url)
            failures.append(_summary(errors))
            if gives_up_at is None and self.on_delay is not None:
                self.on_delay(failures[-1])
            gives_up_at = gives_up_at or self.clock() + self.patience
            requested = [error.retry_after or 0.0 for error in errors.values() if isinstance(error, Unavailable)]
            pause_now = max([pause * random.uniform(0.5, 1.0), *requested])  # noqa: S311
            if self.clock() + pause_now > gives_up_at:
                raise failures[-1]
            await self.sleep(pause_now)
            pause = min(pause * 2, LONGEST_PAUSE)

    def switch_from(self, url: str) -> None:
        """Uses the next replica from now on, unless another request has already switched."""
        if self.urls[self._at] == url:
            self._at = (self._at + 1) % len(self.urls)

    async def _send(
        self,
        method: str,
        url: str,
        path: str,
        params: Params | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: bytes | None,
    ) -> aiohttp.ClientResponse:
        socket = to_path(url)
        try:
            if socket is not None:
                check_private(socket.parent)  # otherwise another user could listen there, and get the token
            response = await self._session(socket).request(
                method,
                (url if socket is None else "http://holdfast") + path,
                params=_query(params),
                data=body,
                headers={"Authorization": f"Bearer {self._token}", "Accept": "application/json", **headers},
                timeout=timeout,
                allow_redirects=False,  # otherwise a redirect could send the token to another host
            )
        except (NotPrivate, FileNotFoundError) as error:
            raise Unreachable(str(error), sent=False) from error
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.ClientSSLError,
        ) as error:
            raise Unreachable(_text(error), sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(_text(error), sent=True) from error
        self._note_time(response.headers.get("Date"))
        if 200 <= response.status < 300:
            return response
        try:
            text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            text = b""
        finally:
            response.release()
        raise refusal(response.status, text, _seconds(response.headers.get("Retry-After")))

    def _session(self, socket: Path | None) -> aiohttp.ClientSession:
        if socket not in self._sessions:
            connector: aiohttp.BaseConnector
            if socket is None:
                connector = aiohttp.TCPConnector(keepalive_timeout=KEEP_ALIVE, limit=0)
            else:
                connector = aiohttp.UnixConnector(str(socket), keepalive_timeout=KEEP_ALIVE, limit=0)
            self._sessions[socket] = aiohttp.ClientSession(connector=connector)
        return self._sessions[socket]

    def _note_time(self, date: str | None) -> None:
        """Updates `skew` from the Date header. The header has whole seconds, and the end of that second is used, so that leases
        may look shorter than they are but never longer."""
        if date is None:
            return
        try:
            self.skew = parsedate_to_datetime(date).timestamp() + 1.0 - time.time()
        except ValueError:
            return


def _query(params: Params | None) -> dict[str, str]:
    wire = {True: "true", False: "false"}
    return {
        name: wire[value] if isinstance(value, bool) else str(value)
        for name, value in (params or {}).items()
        if value is not None
    }


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after)) if retry_after is not None else None
    except ValueError:
        return None  # a date, which our server never sends


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        # asyncio's own text is "Connect call failed ('127.0.0.1', 7070)". The number of a failed lookup is negative.
        return os.strerror(number) if number and number > 0 else error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def _summary(errors: dict[str, HoldfastError]) -> HoldfastError:
    """Returns one error for all replicas. A replica's answer is preferred, because it says more than a failed connection."""
    for error in errors.values():
        if isinstance(error, Unavailable):
            return error
    sent = any(isinstance(error, Unreachable) and error.sent for error in errors.values())
    return Unreachable("no replica answered: " + "; ".join(f"{url}: {error}" for url, error in errors.items()), sent=sent)
