"""Runs the command line in a terminal of a given size, as a person does: keys go in, and the screen comes out."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios

from waiting import eventually

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
HOME = "\x1b[H"  # moves to the first line: a live screen begins its next frame with it


class Terminal:
    """`with Terminal("top", env=…) as terminal` starts `holdfast top`. At the end the process is ended if it still runs."""

    def __init__(self, *arguments: str, env: dict[str, str], columns: int = 80, lines: int = 24) -> None:
        self.columns, self.lines = columns, lines
        self._arguments, self._env = arguments, env
        self._printed = b""

    def __enter__(self) -> "Terminal":
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", self.lines, self.columns, 0, 0))
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *self._arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**env, "TERM": "xterm", **self._env},
        )  # fmt: skip
        os.close(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def resize(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)  # the kernel does so only for a terminal that controls the process

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def raw(self) -> str:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # the process has closed its side
                break
            if not piece:
                break
            self._printed += piece
        return self._printed.decode(errors="replace")

    @property
    def text(self) -> str:
        """Returns everything that was printed, without colours."""
        return CODES.sub("", self.raw).replace("\r\n", "\n")

    @property
    def frame(self) -> list[str]:
        """Returns the lines of the last frame of a live screen."""
        return CODES.sub("", self.raw.rsplit(HOME, 1)[-1]).replace("\r\n", "\n").split("\n")

    @property
    def echoes(self) -> bool:
        """Returns whether the terminal shows what is typed, as a shell expects it."""
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def shows(self, words: str, within: float = 30) -> str:
        """Waits until the words are printed, and returns everything that was printed."""
        return eventually(lambda: self.text if words in self.text else "", within, f"the terminal shows {words!r}")

    def frame_with(self, words: str) -> list[str]:
        return eventually(lambda: (f := self.frame) and any(words in line for line in f) and f, 30, f"a frame with {words!r}")

    def ends(self) -> int:
        """Waits for the end of the process, and returns its exit code."""
        eventually(lambda: (self.raw, self.process.poll())[1] is not None, 30, "the command ends")
        return self.process.returncode
