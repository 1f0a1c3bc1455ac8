"""A person's terminal: runs documented commands one after the other in one folder, with the placeholders filled in."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import holdfast
from waiting import Deadline, eventually

ROWS = 24
WIDE = 160  # columns
PATIENCE = 40  # seconds per command, on an idle machine
SCRIPT = """set -a
source {state}
{command}
code=$?
export -p > {state}
exit $code
"""
# What the documents write for values that a person copies from an earlier output, and where such a value is found.
COPIED = {
    "c-…": r"\b(c-[0-9a-z]{8,})\b",
    "t-…": r"(t-\w+)\s+ci\b",
    "hfc_…": r'"credential": ?"(hfc_[^"]+)"',
    "1099511627778": r'"fence": ?(\d+)',
    "http://127.0.0.1:45633": r'"endpoint": ?"([^"]+)"',
}
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[()][A-Z0-9])")


class Running:
    """A command that was started. Its output is collected while it runs."""

    def __init__(self, command: list[str], home: Path, env: dict[str, str], columns: int | None) -> None:
        self._output = bytearray()
        if columns is None:
            source, sink = os.pipe()
            stdin: int = subprocess.DEVNULL
        else:
            source, sink = pty.openpty()
            fcntl.ioctl(sink, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
            stdin = sink
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env=env,
            stdin=stdin,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=None if columns is None else lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(sink)
        self._reader = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._reader.start()

    def _read(self, source: int) -> None:
        try:
            while piece := os.read(source, 65536):
                self._output += piece
        except OSError:
            pass  # Linux answers so when the last program on a terminal has ended
        finally:
            os.close(source)

    @property
    def output(self) -> str:
        return ESCAPES.sub("", bytes(self._output).decode(errors="replace")).replace("\r\n", "\n")

    def until(self, text: str) -> None:
        eventually(lambda: text in self.output or self.process.poll() is not None, PATIENCE, f"{text!r} is printed")
        assert text in self.output, self.output

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> int:
        deadline = Deadline(PATIENCE)
        while not deadline.over():
            try:
                code = self.process.wait(1)
                self._reader.join(30)
                return code
            except subprocess.TimeoutExpired:
                continue
        os.killpg(self.process.pid, signal.SIGKILL)
        raise AssertionError(f"it did not end:\n{self.output}")


class Terminal:
    """A folder in which a person works. Variables stay set from one command to the next. Without `columns` the output goes to a
    pipe, as in a script."""

    def __init__(self, home: Path, port: int, columns: int | None = None) -> None:
        self.home, self.port, self.columns = home, port, columns
        self.seen = ""  # all output so far
        self._state = home / f"variables-{columns}"
        self._state.touch()
        programs = home / "bin"
        programs.mkdir(exist_ok=True)
        for name, arguments in (("holdfast", "-m holdfast"), ("python", "")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            (programs / name).chmod(0o755)
        known = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
        packages = str(Path(holdfast.__file__).parents[1])
        self.env = known | {"HOME": str(home), "TMPDIR": str(home), "TERM": "xterm"}
        self.env |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": packages}

    def start(self, command: str, *, watched: bool = False) -> Running:
        """Starts a command. What a person watches until Ctrl-C runs in a terminal, also if everything else is in a script."""
        script = SCRIPT.format(state=self._state, command=self.filled(command))
        return Running(["bash", "-c", script], self.home, self.env, WIDE if watched and not self.columns else self.columns)

    def filled(self, text: str) -> str:
        """Returns the command or program with the values that this person has seen."""
        for port in (7070, 7071):  # one replica answers for both
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.port}")
        for placeholder, pattern in COPIED.items():
            if placeholder in text:
                found = re.findall(pattern, self.seen)
                assert found, f"nothing to fill in for {placeholder} in: {text}"
                text = text.replace(placeholder, found[-1])
        return text
