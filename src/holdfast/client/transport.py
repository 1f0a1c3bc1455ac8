"""Ask one of several replicas, and know what may be asked again.

Any replica serves any request, so a replica that cannot be reached is left for the next. A request that never
left is always tried elsewhere; one that may have been heard is repeated only if the caller calls it `safe`.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp

from .errors import HoldfastError, NotConfigured, Unavailable, Unreachable, refusal

T = TypeVar("T")
Params = Mapping[str, str | int | bool | None]

CONNECT_TIMEOUT = 3.0  # seconds; a replica on a dead host must not cost more than this
ANSWER_TIMEOUT = 10.0  # seconds beyond what the caller asked the server to wait
KEEP_ALIVE = 4.0  # seconds; well below the 75 s after which our server closes an idle connection
FIRST_PAUSE = 0.2  # seconds, doubling
LONGEST_PAUSE = 5.0


class RawResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def addresses(urls: str | Sequence[str]) -> list[str]:
    """The replicas' addresses; one string may hold several, separated by commas."""
    found = [url.strip().rstrip("/") for part in ([urls] if isinstance(urls, str) else urls) for url in part.split(",")]
    found = [url for url in found if url]
    if not found:
        raise NotConfigured("no server address given")
    for url in found:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NotConfigured(f"{url!r} is not an address such as http://127.0.0.1:7070")
    return found


class Transport:
    """HTTP to whichever replica answers."""

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
        self.told: Callable[[HoldfastError], None] | None = None  # hears once a call why it takes longer
        self.patience = patience  # seconds for which an unreachable or unavailable server is asked again
        self.skew = 0.0  # seconds by which the server's clock is ahead of ours
        self.clock = clock
        self.sleep = sleep
        self._token = token
        self._at = 0
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

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
        """The answer of one replica. `wait` is how long the server was asked to wait."""
        timeout = aiohttp.ClientTimeout(total=wait + ANSWER_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
        headers = {"Content-Type": "application/json"} if body is not None else {}

        async def once(url: str) -> RawResponse:
            response = await self._send(method, url + path, params, headers, timeout, body)
            try:
                return RawResponse(response.status, response.headers, await response.read())
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise Unreachable(_words(error), sent=True) from error
            finally:
                response.release()

        return await self.anywhere(once, safe=safe)

    async def stream(
        self,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        quiet: float,
    ) -> aiohttp.ClientResponse:
        """An open GET whose body the caller reads and closes; `quiet` seconds without a byte break it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=quiet)

        async def once(url: str) -> aiohttp.ClientResponse:
            return await self._send("GET", url + path, params, headers or {}, timeout, None)

        return await self.anywhere(once, safe=True)

    async def anywhere(self, once: Callable[[str], Awaitable[T]], *, safe: bool) -> T:
        """Try replica after replica, then pause and try them all again until patience ends."""
        gives_up_at: float | None = None
        pause = FIRST_PAUSE
        while True:
            said: dict[str, HoldfastError] = {}
            for _ in self.urls:
                url = self.urls[self._at]
                try:
                    return await once(url)
                except Unavailable as error:
                    if not safe:
                        raise
                    said[url] = error
                except Unreachable as error:
                    if error.sent and not safe:
                        raise Unreachable(
                            f"{url} may have heard the request, but its answer was lost: {error}", sent=True
                        ) from error
                    said[url] = error
                self.leave(url)
            if gives_up_at is None and self.told is not None:
                self.told(_summary(said))
            gives_up_at = gives_up_at or self.clock() + self.patience
            told = [error.retry_after or 0.0 for error in said.values() if isinstance(error, Unavailable)]
            pause_now = max([pause * random.uniform(0.5, 1.0), *told])  # noqa: S311
            if self.clock() + pause_now > gives_up_at:
                raise _summary(said)
            await self.sleep(pause_now)
            pause = min(pause * 2, LONGEST_PAUSE)

    def leave(self, url: str) -> None:
        """Ask the next replica from now on, unless somebody else already moved on."""
        if self.urls[self._at] == url:
            self._at = (self._at + 1) % len(self.urls)

    async def _send(
        self,
        method: str,
        url: str,
        params: Params | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: bytes | None,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=KEEP_ALIVE, limit=0))
        try:
            response = await self._session.request(
                method,
                url,
                params=_query(params),
                data=body,
                headers={"Authorization": f"Bearer {self._token}", "Accept": "application/json", **headers},
                timeout=timeout,
                allow_redirects=False,  # a redirect must not carry the token elsewhere
            )
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.ClientSSLError,
        ) as error:
            raise Unreachable(_words(error), sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(_words(error), sent=True) from error
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

    def _note_time(self, date: str | None) -> None:
        """Dates have whole seconds: taking the end of that second makes leases look shorter, never longer."""
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
        return None  # a date: our server never sends one


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def _summary(said: dict[str, HoldfastError]) -> HoldfastError:
    """A replica's own word beats the silence of another."""
    for error in said.values():
        if isinstance(error, Unavailable):
            return error
    sent = any(isinstance(error, Unreachable) and error.sent for error in said.values())
    return Unreachable("no replica answered: " + "; ".join(f"{url}: {error}" for url, error in said.items()), sent=sent)
