"""The standard input of `run`: pass it to the command (-i), or notice that it would be ignored.

Without -i, input is refused if it was meant for this command: stdin is a pipe or a file with something in it, and it is not
also the stdin of our parent process. A stdin that we share with our parent is often not meant for us. Some CI systems pipe the
whole script to a shell, and `while read` loops read a list; there we only print a hint. An empty pipe is never refused, because
programs start us with a pipe that they never write to. If input arrives on it later, we print the hint then.
"""

import asyncio
import fcntl
import os
import stat
import struct
import termios
import threading
from collections.abc import AsyncIterator

from .connection import CommandFailed, print_message

STDIN = 0
PIECE = 32 * 1024
HINT = "use -i to pass it, or < /dev/null to run without it"


def check_unused() -> None:
    """Refuses input that would be ignored, or prints a hint if it may not be meant for us."""
    if not _has_input():
        return
    if _is_parents():
        print_message(f"stdin has input, which is not passed to the command; {HINT}")
    else:
        raise CommandFailed(f"stdin has input, which would not be passed to the command; {HINT}", 2)


def watch_unused() -> None:
    """Prints the hint if input arrives on a pipe while the command runs."""
    loop = asyncio.get_running_loop()
    if not _is_pipe() or _has_input():
        return

    def readable() -> None:
        loop.remove_reader(STDIN)
        if _has_input():  # otherwise it is the end of the input
            print_message(f"input has arrived on stdin, which is not passed to the command; {HINT}")

    loop.add_reader(STDIN, readable)


def _is_pipe() -> bool:
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _has_input() -> bool:
    try:
        if _is_pipe():
            return bool(struct.unpack("i", fcntl.ioctl(STDIN, termios.FIONREAD, b"\0" * 4))[0])
        status = os.fstat(STDIN)
        return stat.S_ISREG(status.st_mode) and status.st_size > os.lseek(STDIN, 0, os.SEEK_CUR)
    except OSError:
        return False


def _is_parents() -> bool:
    """Returns whether our parent process has the same stdin, or may have it: not every system shows it."""
    ours = os.fstat(STDIN)
    try:
        theirs = os.stat(f"/proc/{os.getppid()}/fd/{STDIN}")
    except OSError:
        return True
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


class Stdin:
    """Reads stdin on a thread, because a terminal or a file cannot be read without blocking. At most a few pieces are read ahead
    of what was sent."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(4)
        self._stopped = asyncio.Event()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the input until its end, or until `stop`."""
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            while True:
                reading = asyncio.create_task(self._pieces.get())
                await asyncio.wait([reading, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not reading.done() or not (data := reading.result()):
                    reading.cancel()
                    return
                yield data
        finally:
            stopped.cancel()

    def stop(self) -> None:
        self._stopped.set()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        data = b"."
        while data:
            try:
                data = os.read(STDIN, PIECE)
            except OSError:  # closed, or a terminal that has gone
                data = b""
            try:
                asyncio.run_coroutine_threadsafe(self._pieces.put(data), loop).result()
            except (RuntimeError, asyncio.CancelledError):  # `run` ends
                return
