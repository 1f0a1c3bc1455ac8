"""The agent's client of /v1/worker/*. It can call any replica, and repeats important calls until they are answered.

A failed call goes to the next replica at once. Only when all replicas failed does the client pause: 0.2 s, doubling to 10 s.
Every call is safe to repeat, so the client repeats a call whose answer was lost.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from .. import __version__
from .config import BadConfig, Config
from .http import HttpClient, HttpResponse, Impostor, Unreachable
from .log import log
from .messages import AgentReport, Directive, Input, Registration

PROTOCOL = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
CALL_SECONDS = 10.0
POLL_SLACK = 10.0  # seconds that an answer may come later than the wait that was requested
RENEW_AT = 0.8  # of a token's lifetime; the rest is enough time for a short outage
NO_CONTACT = (401, 403, 502, 504)  # answers that do not count as contact: the call was rejected, or came from a gateway

T = TypeVar("T")


def pauses() -> Callable[[], float]:
    """Returns the backoff of one call: each pause is a random part of a bound that doubles."""
    bound = FIRST_PAUSE / 2

    def following() -> float:
        nonlocal bound
        bound = min(bound * 2, LONGEST_PAUSE)
        return bound * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the agents; no secret

    return following


class Control:
    """Calls `on_silence` at each failure, with the seconds since the first of the failures in a row. `on_silence` may raise to
    give up."""

    def __init__(self, config: Config, on_silence: Callable[[float], None]) -> None:
        self._config = config
        self._on_silence = on_silence
        self._client = _client(config)
        self._impostors: set[str] = set()  # addresses whose process could not prove itself, each logged once
        self._servers = config.read_servers()
        self._turn = random.randrange(max(1, len(self._servers)))  # noqa: S311 - spreads the agents over the replicas
        self._signing = asyncio.Lock()
        self._registration: Registration | None = None
        self._renew_at = self._expires_at = 0.0
        self._no_contact_since: float | None = None
        self._cut_off = False
        self._incarnation = 0  # of the database; each report carries it, so that the server recognizes an old one

    def close(self) -> None:
        self._client.close()

    # The calls

    async def register(self) -> Registration:
        """Registers, and returns the settings. They never change; later registrations only bring a new token."""
        pause, failures = pauses(), 0
        while not await self._signed_in():
            self._report_silence()
            failures += 1
            if failures % max(1, len(self._servers)) == 0:
                await asyncio.sleep(pause())
        assert self._registration
        return self._registration

    async def poll(self, report: AgentReport, wait: float) -> Directive:
        repeated = False
        while True:
            body = {**msgspec.to_builtins(report), "incarnation": self._incarnation, "wait": wait}
            answer = await self._call_until_answered("poll", body, wait + POLL_SLACK)
            directive = _decoded(answer, Directive)
            if directive is None:
                await asyncio.sleep(LONGEST_PAUSE)
                continue
            if directive.incarnation is None:
                return directive
            self._incarnation = directive.incarnation
            if repeated:
                return directive  # the caller polls again, after a pause
            repeated = True  # the report did not count, so it is sent again at once

    async def progress(self, fence: int) -> bool:
        """Reports progress, without a retry because the next report follows 3 s later. Returns False if the claim is no longer
        this worker's."""
        answer = await self._call_once("progress", {"fence": fence}, 3.0)
        return not (answer is not None and _stale(answer))

    async def acknowledge(self, fence: int, endpoint: str | None) -> bool:
        """Returns whether the server accepted the acknowledgement. If not, nothing may start."""
        body: dict[str, object] = {"fence": fence, "endpoint": endpoint, "incarnation": self._incarnation}
        return not _stale(await self._call_until_answered("ack", body))

    async def result(self, fence: int, exit_code: int, reason: str) -> bool:
        """Reports the result, and retries forever. Returns False if the claim had already ended in another way."""
        body = {"fence": fence, "exit_code": exit_code, "reason": reason}
        return not _stale(await self._call_until_answered("result", body))

    async def input(self, fence: int, taken: int, wait: float, closed: bool = False) -> Input | None:
        """Reports how many bytes of input the command has received, and returns the next ones. Returns None if the claim is no
        longer this worker's."""
        body: dict[str, object] = {"fence": fence, "taken": taken, "closed": closed, "wait": wait}
        while True:
            answer = await self._call_until_answered("input", body, wait + POLL_SLACK)
            if _stale(answer):
                return None
            if (piece := _decoded(answer, Input)) is not None:
                return piece
            await asyncio.sleep(LONGEST_PAUSE)

    async def refuse(self, fence: int, reason: str, output: str, patience: float) -> None:
        body: dict[str, object] = {"fence": fence, "reason": reason}
        await self._call_for("refuse", body | ({"output": output} if output else {}), patience)

    async def failed(self, reason: str, output: str, patience: float) -> None:
        body: dict[str, object] = {"reason": reason}
        await self._call_for("failed", body | ({"output": output} if output else {}), patience)

    async def log(self, text: str) -> bool:
        """Sends the worker's last output, without a retry because a later report replaces it. Returns whether it was stored. A
        server that does not know this call will not store the next report either, so that counts as stored."""
        answer = await self._call_once("log", {"text": text}, CALL_SECONDS)
        return answer is not None and answer.status < 500

    async def send_report(self, report: AgentReport, patience: float) -> None:
        """Sends a report without waiting for a directive. It is a poll, so that a report which did not count is sent again."""
        await self._wait_for(self.poll(report, 0), "poll", patience)

    # How calls are sent

    async def _call_for(self, call: str, body: dict[str, object], patience: float) -> None:
        await self._wait_for(self._call_until_answered(call, body), call, patience)

    async def _wait_for(self, calling: Coroutine[Any, Any, object], call: str, patience: float) -> None:
        """Calls for at most `patience` seconds. Used before an exit, from which the server learns the same a little later."""
        try:
            async with asyncio.timeout(patience):
                await calling
        except TimeoutError:
            log("gave up", call=call, patience=patience)

    async def _call_until_answered(self, call: str, body: dict[str, object], timeout: float = CALL_SECONDS) -> HttpResponse:
        """Repeats the call until the answer is a success or `stale`."""
        pause, failures, refused = pauses(), 0, 0
        while True:
            answer = await self._call_once(call, body, timeout)
            if answer is not None and (answer.status < 300 or _stale(answer)):
                return answer
            self._report_silence()
            if answer is not None and answer.status == 401 and not refused:
                refused += 1
                continue  # the token expired: the next try gets a new token first
            failures += 1
            if answer is not None and answer.status < 500:
                if call == "input" and answer.status == 404:
                    self._next_server()  # a replica of the release before, which does not know this call
                if failures == 1:
                    log("refused", call=call, status=answer.status, code=answer.code)
            elif failures % max(1, len(self._servers)):
                continue  # try the next replica at once
            await asyncio.sleep(max(pause(), min(answer.retry_after, LONGEST_PAUSE) if answer else 0))

    async def _call_once(self, call: str, body: dict[str, object], timeout: float) -> HttpResponse | None:
        if not await self._signed_in():
            return None
        registration = self._registration
        assert registration
        answer = await self._send(call, body, registration.token, timeout)
        if answer is not None and answer.status == 401 and self._registration is registration:
            self._renew_at = self._expires_at = 0.0
        return answer

    async def _signed_in(self) -> bool:
        """Returns whether there is a valid token. Renews it early, so that it lasts through a short outage."""
        async with self._signing:
            if time.monotonic() >= self._renew_at:
                await self._sign_in()
            return time.monotonic() < self._expires_at

    async def _sign_in(self) -> None:
        """Gets a new token, if a server gives one."""
        try:
            token = self._config.read_token()
        except BadConfig as error:
            log("no token", why=error)
            return
        body: dict[str, object] = {"worker": self._config.worker, "uid": self._config.uid}
        answer = await self._send("register", body | {"version": __version__, "protocol": PROTOCOL}, token, CALL_SECONDS)
        if answer is None:
            return
        if answer.status != 200:
            log("refused", call="register", status=answer.status, code=answer.code)
        elif (got := _decoded(answer, Registration)) is not None:
            self._registration = got
            now = time.monotonic()
            self._renew_at, self._expires_at = now + got.expires_in * RENEW_AT, now + got.expires_in

    async def _send(self, call: str, body: dict[str, object], token: str, timeout: float) -> HttpResponse | None:
        """Calls the current replica once. Returns None if there was no answer; the next call then goes to the next replica."""
        if not self._servers:
            self._next_server()
            return None
        server = self._servers[self._turn % len(self._servers)]
        try:
            answer = await self._client.post(server, f"/v1/worker/{call}", token, msgspec.json.encode(body), timeout)
        except Impostor as error:
            self._next_server()
            if server not in self._impostors:
                log("impostor", server=server, call=call, why=error)
            self._impostors.add(server)
            return None
        except Unreachable as error:
            self._next_server()
            if not self._cut_off:
                log("cut off", server=server, call=call, why=error)
            self._cut_off = True
            return None
        if self._cut_off:
            log("connected again", server=server)
        self._cut_off = False
        self._impostors.discard(server)
        if answer.status >= 500:
            self._next_server()
        if answer.status not in NO_CONTACT and call != "log":  # a stored log does not prove that polls are answered
            self._no_contact_since = None
        return answer

    def _report_silence(self) -> None:
        """Counts from the first failure, not from the last success, because there may have been nothing to send in between."""
        now = time.monotonic()
        if self._no_contact_since is None:
            self._no_contact_since = now
        self._on_silence(now - self._no_contact_since)

    def _next_server(self) -> None:
        self._turn += 1
        try:
            self._servers = self._config.read_servers() or self._servers  # all replicas may have left, and come back
        except BadConfig as error:
            log("servers", why=error, kept=len(self._servers))


def _client(config: Config) -> HttpClient:
    if config.server_key is None:
        return HttpClient()  # a pod that was made by the release before
    from ..proof import PublicKey

    return HttpClient(PublicKey(config.server_key))


def _stale(answer: HttpResponse) -> bool:
    return answer.status == 409 and answer.code == "stale"


def _decoded(answer: HttpResponse, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Safe to log: the message names the field and the types, never the value.
        log("not understood", kind=kind.__name__, why=error)
        return None
