"""One pod's folder: the content of its files, atomic writes, and the lock for writers.

Every file is replaced by a rename. So a reader sees the old or the new content, and the modification time of the folder
changes with each write. This makes it possible to list a thousand unchanged pods without opening their files.
"""

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from ..model.pod import Stamp
from ..ports.cluster import ClusterUnavailable
from .process import BOOT, Kin, Process, Table, kin

T = TypeVar("T")

LOCK_TIMEOUT = 0.8  # seconds, because `protect` has to answer within 1 s
# ns. Two changes within one tick of the folder's time look alike, and some file systems have ticks of 2 s.
SETTLED = 2_000_000_000
TRIES = 5


class OrderFile(msgspec.Struct, frozen=True, kw_only=True):
    """order.json: the identity of the pod. Written once, before the folder gets its final name."""

    worker: str
    uid: str
    install: str
    pool_id: str
    pool: str
    revision: str
    epoch: int
    created_at: float
    agent: bool
    boot: str


class StampFile(msgspec.Struct, frozen=True):
    """stamp.json: the pod's stamp. The version grows even when the stamp is removed, so that a late `clear` never matches."""

    version: int = 0
    stamp: Stamp | None = None
    protected: bool = False


class Termination(msgspec.Struct, frozen=True):
    """terminating: when the pod was asked to end, and how long that may take. Without a grace there is no limit."""

    at: float
    grace: float | None

    @property
    def until(self) -> float:
        return float("inf") if self.grace is None else self.at + self.grace


class Exit(msgspec.Struct, frozen=True):
    """exit.json: the end of the pod. It exists only when no process of the pod is left."""

    exit_code: int | None = None
    error: str | None = None
    at: float = 0.0


class ExitRecord(msgspec.Struct, frozen=True):
    """result.json: the exit code of the claim's command. Only the agent writes it."""

    claim: str
    fence: int
    exit_code: int


class Launch(msgspec.Struct, frozen=True):
    """launch.json: the command and environment that the shim starts."""

    argv: list[str]
    env: dict[str, str]


class PodFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The content of all files in a pod's folder."""

    order: OrderFile
    stamp: StampFile = StampFile()
    shim: Process | None = None
    agent: Process | None = None
    termination: Termination | None = None
    exit: Exit | None = None
    result: ExitRecord | None = None


Stat = tuple[int, int]


DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (OrderFile, StampFile, Process, Termination, Exit, ExitRecord)
}


class Folder:
    """The files of one worker. Every method raises FileNotFoundError if the folder is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stat(self) -> Stat:
        """Returns a value that changes with every write, and when another folder gets the same name."""
        seen = os.stat(self.path)
        return seen.st_ino, seen.st_mtime_ns

    def facts(self) -> tuple[PodFiles, Stat | None]:
        """Returns the files' content, and the stat for which it may be cached, or None if a change could be missed."""
        for _ in range(TRIES):
            before, now = self.stat(), time.time_ns()
            facts, whole = self._facts()
            if self.stat() == before:
                settled = whole and now - before[1] > SETTLED
                return facts, before if settled else None
        if self.stat()[0] != before[0]:
            raise FileNotFoundError(self.path)
        return facts, None  # the folder changes constantly, but it is still the same pod

    def _facts(self) -> tuple[PodFiles, bool]:
        names = set(os.listdir(self.path))
        order = self._load("order.json", OrderFile)
        assert order is not None
        # After a crash of the machine a file may be empty. This does not matter, because no process of the pod is alive then.
        sound = order.boot == BOOT

        def load(name: str, kind: type[T], trusted: bool = True) -> T | None:
            return self._load(name, kind, trusted and sound) if name in names else None

        result = load("result.json", ExitRecord, trusted=False)
        facts = PodFiles(
            order=order,
            stamp=load("stamp.json", StampFile) or StampFile(),
            shim=load("pod.json", Process),
            agent=load("agent.json", Process),
            termination=load("terminating", Termination),
            exit=load("exit.json", Exit),
            result=result,
        )
        return facts, result is not None or "result.json" not in names

    def _load(self, name: str, kind: type[T], trusted: bool = True) -> T | None:
        path = f"{self.path}/{name}"
        try:
            return cast(T, DECODERS[kind].decode(_content(path)))
        except FileNotFoundError:
            raise  # the file was listed a moment ago, so the folder was removed or moved
        except msgspec.DecodeError as error:
            if trusted:
                raise ClusterUnavailable(f"{path} is damaged: {error}") from error
            return None
        except OSError as error:
            raise ClusterUnavailable(f"cannot read {path}: {error}") from error

    def kin(self, facts: PodFiles, table: Table) -> Kin:
        """Returns the living processes of the pod. Reads the list of groups each time, because the agent appends to it."""
        assert facts.shim is not None
        groups: list[tuple[int, float]] = []
        with contextlib.suppress(OSError):
            for line in _content(f"{self.path}/groups").split(b"\n"):
                with contextlib.suppress(ValueError):  # an incomplete line
                    pid, at = line.split()
                    groups.append((int(pid), float(at)))
        return kin(facts.order.uid, facts.shim, facts.agent, table, str(self.path), groups)

    def write(self, name: str, value: msgspec.Struct, durable: bool = False) -> None:
        """Replaces the file in one step."""
        draft = self._draft(name, msgspec.json.encode(value), durable)
        os.rename(draft, self.path / name)

    def write_once(self, name: str, value: msgspec.Struct) -> bool:
        """Writes the file if it does not exist; otherwise returns False."""
        draft = self._draft(name, msgspec.json.encode(value))
        try:
            os.link(draft, self.path / name)
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        return True

    def write_text(self, name: str, text: str) -> None:
        os.rename(self._draft(name, text.encode()), self.path / name)

    def _draft(self, name: str, data: bytes, durable: bool = False) -> Path:
        draft = self.path / f".{name}.{uuid.uuid4().hex}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        return draft

    @contextlib.contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
        """Holds the lock of the folder, which only one writer of all replicas can have. A writer that dies releases it."""
        until = time.monotonic() + timeout
        while True:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                if self._take(fd):
                    yield
                    return
            finally:
                os.close(fd)
            if time.monotonic() > until:
                raise ClusterUnavailable(f"{self.path.name} has been locked by another process for more than {timeout:g} s")
            time.sleep(0.005)

    def _take(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The folder may have been removed and created again during the wait. Then this file is not the lock of the new folder.
        return os.path.samestat(os.fstat(fd), os.stat(self.path / "lock"))

    def make_lock(self) -> int:
        """Creates and takes the lock of a new folder. Returns its descriptor; closing it releases the lock."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def remove(self) -> None:
        """Renames the folder first, so that it disappears for readers in one step. Then removes its files."""
        away = self.path.with_name(f".gone-{uuid.uuid4().hex}")
        os.rename(self.path, away)
        remove_tree(away)


def _content(path: str) -> bytes:
    """Returns the content of a small file. Three times as fast as Path.read_bytes, which matters for the first list of pods."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 65_536)
        while len(data) % 65_536 == 0 and (more := os.read(fd, 65_536)):
            data += more
        return data
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    """Removes a folder. A worker may have removed permissions, so they are restored first; the next sweep removes the rest."""
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)
