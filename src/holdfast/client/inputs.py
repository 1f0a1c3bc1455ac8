"""Sends standard input to a job's command, at the pace at which the command reads it."""

from collections.abc import AsyncIterable
from typing import TYPE_CHECKING

import msgspec

from .endpoints import at
from .errors import Conflict

if TYPE_CHECKING:
    from .endpoints import Endpoints

PIECE = 32 * 1024  # bytes of one request, as the server limits it
LONGEST_WAIT = 10.0  # seconds that the server may wait until there is room


class InputState(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the input the server has (`offset`), and how much of it the command has received (`taken`; None if no agent has
    asked for it). `end`: the input is complete. `closed`: the command does not read any more."""

    offset: int = 0
    taken: int | None = None
    end: bool = False
    closed: bool = False


class _Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    offset: int
    data: bytes = b""
    end: bool = False


async def send_input(endpoints: "Endpoints", claim: str, source: bytes | AsyncIterable[bytes]) -> InputState:
    """Sends everything and then the end. Stops early if the command does not read any more, or has ended. Bytes that
    the server has already, because the same input was sent before, are not sent again."""
    sender = _Sender(endpoints, claim)
    try:
        if isinstance(source, bytes):
            await sender.send(source)
        else:
            async for data in source:
                if not await sender.send(data):
                    break
        await sender.finish()
    except Conflict as error:
        if error.code != "ended":
            raise
    return sender.state


class _Sender:
    def __init__(self, endpoints: "Endpoints", claim: str) -> None:
        self._endpoints, self._path = endpoints, at("claims", claim, "input")
        self._position = 0  # bytes of our source that the server has; it may have more, if the same input was sent before
        self.state = InputState()

    async def send(self, data: bytes) -> bool:
        """Returns whether the command still reads."""
        for start in range(0, len(data), PIECE):
            await self._post(data[start : start + PIECE])
            if self.state.closed:
                return False
        return not self.state.closed

    async def finish(self) -> None:
        if not self.state.closed:
            await self._post(b"", end=True)

    async def _post(self, data: bytes, end: bool = False) -> None:
        """Sends bytes until they are stored. The offset makes it safe to send them again."""
        last = self._position + len(data)
        while True:
            known = min(max(self.state.offset - self._position, 0), len(data))
            self._position, data = self._position + known, data[known:]
            if not data and not end:
                return
            body = _Sent(self._position, data, end)
            self.state = await self._endpoints.ask(InputState, "POST", self._path, body=body, safe=True, wait=LONGEST_WAIT)
            if self.state.closed or self.state.offset >= last:
                self._position = last
                return
