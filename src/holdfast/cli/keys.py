"""Reads single keys from the terminal while a command shows a live screen."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator

ESCAPE, ENTER, DELETE = "\x1b", "\n", "\x7f"


@contextlib.contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Calls `pressed` with each key, without waiting for the end of a line. Does nothing if the input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        typed = os.read(terminal, 64).decode(errors="ignore")
        if len(typed) > 1 and typed.startswith(ESCAPE):
            return  # an arrow or a function key, which the terminal sends as several characters
        for key in typed:
            pressed({"\r": ENTER, "\b": DELETE}.get(key, key))

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)  # unlike raw mode, Ctrl-C still interrupts
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)  # otherwise the shell would not show what is typed
