"""Read and delete the outputs of claims. Agents write them as decision 0019 describes."""

import bisect
import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from ..model.output import Stream
from ..ports.cluster import ClusterUnavailable, Mark, Output

CLAIM = re.compile(r"[A-Za-z0-9_-]{1,128}")
FILE = re.compile(rf"({CLAIM.pattern})(|\.truncated|\.marks|\.tail)")
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
MARK_BYTES = 8
YOUNG = 60.0  # seconds; younger files stay, because their claim may have been made after `keep` was read


class _Deleted(Exception):
    """The agent deleted a file of the end after it was listed."""


class Outputs:
    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, claim: str, offset: int, limit: int, reader: str = "") -> Output:
        if not CLAIM.fullmatch(claim):
            raise ValueError(f"not the id of a claim: {claim!r}")
        assert offset >= 0
        assert limit >= 0
        if reader:
            self._note_reader(claim, reader, offset)
        try:
            while True:
                with contextlib.suppress(_Deleted):
                    return self._read(claim, offset, limit)
        except OSError as error:
            raise ClusterUnavailable(f"cannot read {self.root / claim}: {error}") from error

    def _note_reader(self, claim: str, reader: str, offset: int) -> None:
        """Writes the position of a reader for the agent. There is no such folder before there is an end, nor need for it."""
        with contextlib.suppress(OSError):
            fd = os.open(self.root / f"{claim}.tail" / f"reader-{reader}", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(fd, f"{offset:020d}".encode(), 0)
            finally:
                os.close(fd)

    def _read(self, claim: str, offset: int, limit: int) -> Output:
        # Listed before anything is read: a file that has a successor in this list is complete, so bytes that it does not have are
        # missing and not yet to come.
        tail = self.root / f"{claim}.tail"
        names = _names(tail)
        starts = sorted(int(name) for name in names or () if name.isdigit())
        files = [self.root / claim, *(tail / f"{start:020d}" for start in starts)]
        begins = [0, *starts]
        at = max(0, bisect.bisect_right(begins, offset) - 1)
        while True:
            position = max(offset, begins[at])
            last = at == len(files) - 1
            most = limit if last else min(limit, begins[at + 1] - position)
            data, _ = _content(files[at], position - begins[at], most)
            if data or last or not limit:
                break
            at += 1
        head, size = _size(files[0]), begins[-1] + _size(files[-1])
        missing = max(0, starts[0] - head) if starts else 0
        cut = "lost" in names if names is not None else (self.root / f"{claim}.truncated").exists()
        return Output(data, position, size, cut, missing, _marks(files[at], position, len(data)))

    def sizes(self) -> dict[str, int]:
        """Returns how many bytes the files of each claim have, with their marks."""
        found: dict[str, int] = {}
        for entry in self._entries():
            if named := FILE.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    files = os.scandir(entry.path) if entry.is_dir() else [entry]
                    found[named[1]] = found.get(named[1], 0) + sum(file.stat().st_size for file in files)
        return found

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self.root))
        except OSError as error:
            raise ClusterUnavailable(f"cannot list {self.root}: {error}") from error

    def prune(self, keep: set[str]) -> int:
        """Removes the outputs of all claims that are not in `keep`. Returns how many."""
        removed = 0
        for entry in self._entries():
            named = FILE.fullmatch(entry.name)
            if named is None or named[1] in keep:
                continue
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime < YOUNG:
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
                removed += entry.name == named[1]
        return removed


def _names(folder: Path) -> list[str] | None:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return None


def _content(path: Path, offset: int, limit: int) -> tuple[bytes, int]:
    """Returns bytes of the file, and its size. The size is read later, so that it is never smaller than what was read."""
    try:
        with open(path, "rb") as file:
            return os.pread(file.fileno(), limit, offset), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        if path.name.isdigit():
            raise _Deleted from None
        return b"", 0


def _size(path: Path) -> int:
    return _content(path, 0, 0)[1]


def _marks(path: Path, position: int, length: int) -> tuple[Mark, ...]:
    """Returns where the stream changes in these bytes, beginning with the stream of the first byte. Marks are sorted, and may be
    many, so the first is found by bisection."""
    if not length:
        return ()
    try:
        file = open(path.with_name(path.name + ".marks"), "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        if path.name.isdigit() and not path.exists():
            raise _Deleted from None  # together with its marks
        return ()
    with file:
        count = os.fstat(file.fileno()).st_size // MARK_BYTES

        def mark(number: int) -> Mark:
            value = int.from_bytes(os.pread(file.fileno(), MARK_BYTES, number * MARK_BYTES), "big")
            return value // 2, STREAMS[value % 2]

        after = bisect.bisect_right(range(count), position, key=lambda number: mark(number)[0])
        found = [(position, mark(after - 1)[1] if after else STREAMS[0])]
        raw = memoryview(os.pread(file.fileno(), length * MARK_BYTES, after * MARK_BYTES))
        for each in range(0, len(raw) - MARK_BYTES + 1, MARK_BYTES):
            value = int.from_bytes(raw[each : each + MARK_BYTES], "big")
            if value // 2 >= position + length:
                break
            if value // 2 >= found[-1][0]:  # not, if two agents write the output of one claim
                found.append((value // 2, STREAMS[value % 2]))
        return tuple(found)
