"""Pass the caller's input to a command: ask the server for the next bytes when the command has taken the last ones."""

import asyncio
import contextlib

from .control import Control
from .process import Group

WAIT_SECONDS = 20.0  # for input that has not been sent yet
ANNOUNCE_SECONDS = 15.0


async def announce(control: Control, fence: int) -> None:
    """Reports, before the command starts, that this agent passes input on. Without this report the caller knows that the agent is
    of a release that cannot, and that the command has read an empty input. If no server answers, the command starts anyway."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANNOUNCE_SECONDS):
            await control.input(fence, 0, 0)


async def pass_input(control: Control, fence: int, group: Group) -> None:
    """Passes input until its end, or until the command does not read any more. The command's own pace limits how much is asked
    for."""
    taken = 0
    while (piece := await control.input(fence, taken, WAIT_SECONDS)) is not None:
        if not await group.feed(piece.data):
            await control.input(fence, taken, 0, closed=True)
            return
        taken += len(piece.data)
        if piece.end:
            group.close_input()
            await control.input(fence, taken, 0)  # the server deletes the last bytes
            return
