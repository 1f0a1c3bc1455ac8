"""Shows that no replica answers while a command still tries: a spinner on a terminal, otherwise one line."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .connection import print_message

if TYPE_CHECKING:
    from holdfast.client.errors import HoldfastError
    from holdfast.client.transport import Transport

TURN = 0.1  # seconds between two pictures of the spinner
PICTURES = "|/-\\"
CLEAR = "\r\x1b[K"  # removes the line, because what follows is the answer or the error


@contextlib.contextmanager
def notice_of_delay(transport: Transport) -> Iterator[None]:
    """Prints that no replica answers, as soon as a request has no answer for 2 s, until one is there."""
    notice = _Notice(transport.urls)
    transport.on_late, transport.on_answer = notice.show, notice.hide
    try:
        yield
    finally:
        transport.on_late = transport.on_answer = None
        notice.clear()


class _Notice:
    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._late = 0  # requests without an answer
        self._printed = False
        self._spinner: asyncio.Task[None] | None = None

    def show(self, reason: HoldfastError | None) -> None:
        from holdfast.client import Unavailable

        self._late += 1
        words = f"no replica answered at {', '.join(self._urls)}"
        if isinstance(reason, Unavailable):
            words = f"not available yet: {reason}"
        if sys.stderr.isatty():
            self._spinner = self._spinner or asyncio.create_task(_spin(f"{words}; trying again, Ctrl-C stops"))
        elif not self._printed:
            self._printed = True
            print_message(f"{words}; trying again")

    def hide(self) -> None:
        self._late -= 1
        if self._late == 0:
            self.clear()

    def clear(self) -> None:
        if self._spinner is not None:
            self._spinner.cancel()
            self._spinner = None
            print(CLEAR, end="", file=sys.stderr, flush=True)


async def _spin(words: str) -> None:
    for picture in itertools.cycle(PICTURES):
        line = f"{picture} {words}"[: shutil.get_terminal_size().columns - 1]  # CLEAR removes one line only
        print(f"{CLEAR}{line}", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(TURN)
