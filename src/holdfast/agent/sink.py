"""Store a claim's output up to a limit: its beginning, its end, and where stdout and stderr alternate (decision 0019)."""

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import IO

from .log import log

TAIL_FILES = 8  # files of the end; the oldest is deleted as a whole, so at least 7/8 of the end's share is kept
STDOUT, STDERR = 0, 1
MARK_BYTES = 8
READER = "reader-"  # files of replicas: the position of a reader that follows, written again with each read
READER_SECONDS = 2.0  # after which a reader that does not read any more counts as gone


class Sink:
    """Appends to files, so that readers need no lock and a reader's position stays valid.

    If a claim is served again, its output continues after that of the lost try.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._tail = path.with_name(path.name + ".tail")
        end = limit // 2
        self._first_bytes, self._tail_bytes = limit - end, max(1, end // TAIL_FILES)
        self._most = max(1, end // self._tail_bytes)
        self._file: IO[bytes] | None = None
        self._marks: IO[bytes] | None = None
        self.nearly_full = asyncio.Event()  # set when bytes of the end are about to be deleted
        try:
            self._starts = tail_starts(self._tail)
            self._open(self._starts[-1] if self._starts else 0)
        except OSError as error:
            log("output lost", path=path, why=error.strerror)

    def write(self, data: bytes) -> None:
        """Stores bytes of stdout."""
        self._write(data, STDOUT)

    def write_error(self, data: bytes) -> None:
        """Stores bytes of stderr."""
        self._write(data, STDERR)

    def has_reader_behind(self) -> bool:
        """Returns whether a reader that follows this output has not read the bytes that are deleted next."""
        if len(self._starts) < 2:
            return False
        now = time.time()
        try:
            for entry in os.scandir(self._tail):
                reads = entry.name.startswith(READER) and now - entry.stat().st_mtime < READER_SECONDS
                if reads and int(Path(entry.path).read_bytes() or b"0") < self._starts[1]:
                    return True
        except (OSError, ValueError) as error:  # never stop a command because of a reader
            log("reader ignored", why=type(error).__name__)
        return False

    def close(self) -> None:
        for file in (self._file, self._marks):
            if file is not None:
                file.close()
        self._file = self._marks = None

    def _write(self, data: bytes, stream: int) -> None:
        try:
            while data and self._file is not None:
                if self._room() <= (MARK_BYTES if stream != self._stream else 0) and self._size > 0:
                    self._open_next()
                if stream != self._stream:
                    self._mark(stream)
                written = self._file.write(data[: max(1, self._room())])
                self._size += written
                data = data[written:]
                if len(self._starts) >= self._most and self._room() < self._share // 2:
                    self.nearly_full.set()
        except OSError as error:  # a full disk must not stop the command
            log("output lost", path=self._path, why=error.strerror)
            self.close()
            with contextlib.suppress(OSError):
                lost = self._tail / "lost" if self._tail.exists() else self._path.with_name(self._path.name + ".truncated")
                lost.touch(0o600)

    def _room(self) -> int:
        return self._share - self._size - self._marked

    def _open(self, start: int) -> None:
        """Opens the beginning (0) or a file of the end. The file may exist already, with the output of a lost try."""
        path = self._tail / f"{start:020d}" if start else self._path
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(fd, "ab", buffering=0)
        self._start, self._size = start, os.fstat(fd).st_size
        self._share = self._tail_bytes if start else self._first_bytes
        self._marks_path = path.with_name(path.name + ".marks")
        try:
            self._marked = self._marks_path.stat().st_size
        except FileNotFoundError:
            self._marked = 0
        self._stream: int | None = None if self._marked else STDOUT

    def _open_next(self) -> None:
        """Continues in a new file of the end, and deletes the oldest ones. The marker comes after the folder, so that a reader
        that finds the marker alone knows that the rest is lost."""
        self._tail.mkdir(0o700, exist_ok=True)
        self._path.with_name(self._path.name + ".truncated").touch(0o600)
        self.close()
        self._open(self._start + self._size)
        self._starts = tail_starts(self._tail)
        while len(self._starts) > self._most:
            old = self._starts.pop(0)
            for name in (f"{old:020d}", f"{old:020d}.marks"):
                with contextlib.suppress(FileNotFoundError):
                    (self._tail / name).unlink()

    def _mark(self, stream: int) -> None:
        if self._marks is None:
            fd = os.open(self._marks_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._marks = os.fdopen(fd, "ab", buffering=0)
        self._marked += self._marks.write((2 * (self._start + self._size) + stream).to_bytes(MARK_BYTES, "big"))
        self._stream = stream


def tail_starts(folder: Path) -> list[int]:
    """Returns the positions at which the files of the end begin, in order."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except FileNotFoundError:
        return []
