"""One pod's folder: what each file in it says, how it is written whole, and who may write now.

Every file is replaced by a rename, so a reader sees the old or the new one, and the folder's own time changes
with it: that is what lets a thousand quiet pods be listed without opening their files.
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

LOCK_TIMEOUT = 0.8  # seconds; `protect` promises its answer within 1 s
SETTLED = 2_000_000_000  # ns; a change may hide in the same tick of the folder's time, and some tick in 2 s
TRIES = 5


class OrderFile(msgspec.Struct, frozen=True, kw_only=True):
    """order.json: what the pod is. Written before the folder has its name, and never again."""

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
    """stamp.json. The version only grows, also when the stamp goes, so that a late `clear` never fits."""

    version: int = 0
    stamp: Stamp | None = None
    protected: bool = False


class Mark(msgspec.Struct, frozen=True):
    """terminating: when somebody asked the pod to end, and how long it may take; no grace: any time."""

    at: float
    grace: float | None

    @property
    def until(self) -> float:
        return float("inf") if self.grace is None else self.at + self.grace


class Exit(msgspec.Struct, frozen=True):
    """exit.json: no process of the pod is left."""

    exit_code: int | None = None
    error: str | None = None
    at: float = 0.0


class ExitRecord(msgspec.Struct, frozen=True):
    """result.json: what the agent says of its claim's command. The agent is the only one that writes it."""

    claim: str
    fence: int
    exit_code: int


class Launch(msgspec.Struct, frozen=True):
    """launch.json: what the shim starts."""

    argv: list[str]
    env: dict[str, str]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a pod's folder says."""

    order: OrderFile
    stamp: StampFile = StampFile()
    shim: Process | None = None
    agent: Process | None = None
    mark: Mark | None = None
    exit: Exit | None = None
    result: ExitRecord | None = None


Stat = tuple[int, int]


DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (OrderFile, StampFile, Process, Mark, Exit, ExitRecord)
}


class Folder:
    """The files of one worker. Gone means FileNotFoundError, from every method."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stat(self) -> Stat:
        """Changes with every file written, and with another folder under the same name."""
        seen = os.stat(self.path)
        return seen.st_ino, seen.st_mtime_ns

    def facts(self) -> tuple[Facts, Stat | None]:
        """What the files say, and the stat that it is true for; None: a change may have slipped in unseen."""
        for _ in range(TRIES):
            before, now = self.stat(), time.time_ns()
            facts, whole = self._facts()
            if self.stat() == before:
                settled = whole and now - before[1] > SETTLED
                return facts, before if settled else None
        if self.stat()[0] != before[0]:
            raise FileNotFoundError(self.path)
        return facts, None  # it changes all the time, but is still the same pod

    def _facts(self) -> tuple[Facts, bool]:
        names = set(os.listdir(self.path))
        order = self._load("order.json", OrderFile)
        assert order is not None
        # After a crash of the machine a file may be empty. It does not matter then: nothing of the pod lives.
        sound = order.boot == BOOT

        def load(name: str, kind: type[T], trusted: bool = True) -> T | None:
            return self._load(name, kind, trusted and sound) if name in names else None

        result = load("result.json", ExitRecord, trusted=False)
        facts = Facts(
            order=order,
            stamp=load("stamp.json", StampFile) or StampFile(),
            shim=load("pod.json", Process),
            agent=load("agent.json", Process),
            mark=load("terminating", Mark),
            exit=load("exit.json", Exit),
            result=result,
        )
        return facts, result is not None or "result.json" not in names

    def _load(self, name: str, kind: type[T], trusted: bool = True) -> T | None:
        path = f"{self.path}/{name}"
        try:
            return cast(T, DECODERS[kind].decode(_content(path)))
        except FileNotFoundError:
            raise  # it was listed a moment ago: the folder went, or moved
        except msgspec.DecodeError as error:
            if trusted:
                raise ClusterUnavailable(f"{path} is damaged: {error}") from error
            return None
        except OSError as error:
            raise ClusterUnavailable(f"cannot read {path}: {error}") from error

    def kin(self, facts: Facts, table: Table) -> Kin:
        """Who lives of the pod. The agent adds to its list of groups in place, so that is read each time."""
        assert facts.shim is not None
        groups: list[tuple[int, float]] = []
        with contextlib.suppress(OSError):
            for line in _content(f"{self.path}/groups").split(b"\n"):
                with contextlib.suppress(ValueError):  # a line half written
                    pid, at = line.split()
                    groups.append((int(pid), float(at)))
        return kin(facts.order.uid, facts.shim, facts.agent, table, str(self.path), groups)

    def write(self, name: str, value: msgspec.Struct, durable: bool = False) -> None:
        """Replace the file in one step."""
        draft = self._draft(name, msgspec.json.encode(value), durable)
        os.rename(draft, self.path / name)

    def write_once(self, name: str, value: msgspec.Struct) -> bool:
        """Write the file if there is none; False: somebody else was first."""
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
        """One writer at a time, over all replicas. A dead one lets go by dying."""
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
                raise ClusterUnavailable(f"{self.path.name} is being written by another for more than {timeout:g} s")
            time.sleep(0.005)

    def _take(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The folder may have been removed and made anew while we waited: then this is the lock of nothing.
        return os.path.samestat(os.fstat(fd), os.stat(self.path / "lock"))

    def make_lock(self) -> int:
        """The lock of a folder that nobody knows yet, taken; closing it lets go."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def remove(self) -> None:
        """In one step for whoever looks, then piece by piece."""
        away = self.path.with_name(f".gone-{uuid.uuid4().hex}")
        os.rename(self.path, away)
        remove_tree(away)


def _content(path: str) -> bytes:
    """A whole small file; three times as quick as Path.read_bytes, which a first list of many pods feels."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 65_536)
        while len(data) % 65_536 == 0 and (more := os.read(fd, 65_536)):
            data += more
        return data
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    """A worker may have locked us out of its own folders; what still stays waits for the next sweep."""
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)
