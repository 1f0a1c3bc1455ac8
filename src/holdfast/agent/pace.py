"""Let a command wait for readers who follow its output and are behind, for a limited time in all (decision 0019)."""

import asyncio

from .process import Group
from .sink import Sink

LONGEST_WAIT = 60.0  # seconds that one command may be slowed down in all; a reader that is too slow misses the middle after that
LOOK_SECONDS = 0.02


async def keep_pace(group: Group, sink: Sink) -> None:
    """Stops reading the command's output while its next bytes would replace what a reader has not read yet."""
    left = LONGEST_WAIT
    while left > 0:
        await sink.nearly_full.wait()
        sink.nearly_full.clear()
        group.pause_output()
        try:
            while left > 0 and group.running and sink.has_reader_behind():
                await asyncio.sleep(LOOK_SECONDS)
                left -= LOOK_SECONDS
        finally:
            group.resume_output()
