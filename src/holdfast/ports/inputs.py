"""The standard input of a claim's command, on its way from the caller to the agent (decision 0019)."""

from typing import Protocol

import msgspec


class InputState(msgspec.Struct, frozen=True):
    """How much of the input has been stored, and how much of it the command has received (None: its agent has not asked yet).
    `closed` means that the command does not read any more."""

    stored: int
    taken: int | None
    complete: bool
    closed: bool


class InputPiece(msgspec.Struct, frozen=True):
    """The bytes that follow what the agent has taken. `end` is set if nothing comes after them."""

    claim: str
    data: bytes
    end: bool


class Inputs(Protocol):
    async def store(self, claim: str, offset: int, data: bytes, complete: bool, room: int) -> InputState | None:
        """Stores bytes that follow the `offset` bytes before them, unless more than `room` bytes would be waiting for the agent.
        All of them are stored if exactly `offset` bytes are stored already, otherwise none. Returns the state after that, or None
        if the claim is not live or takes no input."""

    async def sent(self, claim: str) -> InputState | None:
        """Returns the state as `store` does, without storing anything."""

    async def take(self, worker: str, fence: int, taken: int, closed: bool) -> InputPiece | None:
        """Records that the command has received `taken` bytes, deletes them, and returns the next ones. Returns None if the claim
        is not, or no longer, active on this worker."""

    async def state(self, claim: str) -> InputState | None:
        """Returns the state, or None if nothing was sent and the agent has not asked."""

    async def next(self, claim: str, taken: int) -> InputPiece:
        """Returns the bytes after `taken`, without recording anything."""
