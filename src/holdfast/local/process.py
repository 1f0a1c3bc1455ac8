"""Tell a process from another with the same pid: look at it, find its kin, signal it and nobody else.

A process is its pid and its start time. On Linux that is exact (ticks since boot, from /proc); elsewhere
psutil's wall clock is compared with a tolerance.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import psutil

ON_LINUX = sys.platform == "linux"
TOLERANCE = 2.0  # seconds between a start as the kernel knows it and as the shim noted it, where it has only a clock
UID, PAYLOAD = "HOLDFAST_POD_UID", "HOLDFAST_PAYLOAD"  # the agent's own, and what each of its jobs gets


class Process(msgspec.Struct, frozen=True):
    """Who a process is, for as long as the machine runs."""

    pid: int
    started: str


Groups = Sequence[tuple[int, float]]  # what an agent started: pid, and when by the wall clock
NOBODY = Process(0, "0")  # stands for a shim that must not come any more


class Observed(msgspec.Struct, frozen=True):
    """One line of the process table."""

    process: Process
    parent: int
    session: int
    zombie: bool = False


def _boot() -> str:
    """This boot and PID namespace: a pod of another one has no process that lives, whatever its pids say."""
    if not ON_LINUX:
        return ""
    said = ["", ""]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        said[0] = file.read().strip()
    with contextlib.suppress(OSError):
        said[1] = os.readlink("/proc/self/ns/pid")
    return " ".join(said)


BOOT = _boot()


def alive(process: Process) -> bool:
    """Whether this very process runs. A zombie does not."""
    seen = look(process.pid)
    if seen is None or not _same(seen.process, process):
        return False
    if seen.zombie and seen.parent == os.getpid():
        # As PID 1 of a container we inherit the shims. Nobody else waits for one: no status is stolen.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return not seen.zombie


def look(pid: int) -> Observed | None:
    """What is under this pid now."""
    return _look_linux(pid) if ON_LINUX else _look_elsewhere(pid)


def send(process: Process, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone. The pidfd is taken before the look: what it names
    cannot change afterwards, so a pid reused in between is never hit."""
    if process.pid <= 1 or process.pid == os.getpid():
        return False
    try:
        if not hasattr(os, "pidfd_open"):
            if not alive(process):
                return False
            os.kill(process.pid, number)
            return True
        fd = os.pidfd_open(process.pid)
        try:
            if not alive(process):
                return False
            signal.pidfd_send_signal(fd, number)
            return True
        finally:
            os.close(fd)
    except (ProcessLookupError, PermissionError):  # gone, or it changed its user: not ours to signal then
        return False


class Kin(msgspec.Struct, frozen=True):
    """What is left of a tree: `sure` may be signalled; `perhaps` only counts as life."""

    sure: tuple[Process, ...] = ()
    perhaps: tuple[Process, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sure or self.perhaps)


class Traces(msgspec.Struct, frozen=True):
    """What a process shows of where it belongs; empty where it shows nothing, or does not let us look."""

    uid: str = ""
    folder: str = ""
    works_in: str = ""


class Table:
    """Every process of the machine that we may see, as of one moment or nearly."""

    def __init__(self) -> None:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if ON_LINUX else psutil.pids()
        found = (look(pid) for pid in pids)
        self.seen = {entry.process.pid: entry for entry in found if entry is not None and not entry.zombie}
        self._traces: dict[int, Traces] = {}

    def traces(self, pid: int) -> Traces:
        """Read once: many pods may ask."""
        if pid not in self._traces:
            self._traces[pid] = _traces(pid)
        return self._traces[pid]


def kin(uid: str, shim: Process, agent: Process | None, table: Table, folder: str = "", groups: Groups = ()) -> Kin:
    """Who lives of a pod whose shim, the parent of all, may have been killed.

    A command of the agent's has a session and an environment of its own. So there are several traces: the session, descent, the
    pod's UID or folder in the environment, and the agent's list of what it started (`groups`).

    The shim's pid stays reserved as long as its session has members. So with the agent alive that session is ours for sure;
    with a stranger under the pid it is empty for sure; else a member counts as life only. So does whoever works in the pod's
    folder: it may be a command that hid all else, and it may be a person who looks around.
    """
    seen = table.seen
    ours = {p.pid: p for p in (shim, agent) if p is not None and p.pid in seen and _same(seen[p.pid].process, p)}
    anchored = bool(ours)
    usurped = shim.pid in seen and not _same(seen[shim.pid].process, shim)
    sessions = {pid for pid, at in groups if pid in seen and abs(_started_at(seen[pid].process) - at) <= TOLERANCE}
    if anchored:
        sessions.add(shim.pid)
    perhaps: list[Process] = []
    for pid, entry in seen.items():
        if pid in ours or pid == os.getpid() or not _not_before(entry.process, shim):
            continue
        traces = table.traces(pid)
        if traces.uid == uid or (folder and traces.folder == folder) or entry.session in sessions:
            ours[pid] = entry.process
        elif traces.uid:
            continue  # another pod's
        elif (entry.session == shim.pid and not usurped) or _below(traces.works_in, folder):
            perhaps.append(entry.process)
    for pid in _descendants(set(ours), seen):
        ours[pid] = seen[pid].process
    ours.pop(os.getpid(), None)
    return Kin(tuple(ours.values()), tuple(p for p in perhaps if p.pid not in ours))


def _descendants(roots: set[int], seen: Mapping[int, Observed]) -> Iterator[int]:
    by_parent: dict[int, list[int]] = {}
    for pid, entry in seen.items():
        by_parent.setdefault(entry.parent, []).append(pid)
    todo = list(roots)
    while todo:
        for pid in by_parent.get(todo.pop(), ()):
            if pid not in roots:
                roots.add(pid)
                todo.append(pid)
                yield pid


def _below(path: str, folder: str) -> bool:
    return bool(folder) and f"{path}/".startswith(f"{folder}/")


def _traces(pid: int) -> Traces:
    env: dict[str, str] = {}
    works_in = ""
    with contextlib.suppress(psutil.Error, OSError):
        env = _environment(pid) if ON_LINUX else psutil.Process(pid).environ()
    with contextlib.suppress(psutil.Error, OSError):
        works_in = os.readlink(f"/proc/{pid}/cwd") if ON_LINUX else psutil.Process(pid).cwd()
    return Traces(env.get(UID, ""), os.path.dirname(env.get(PAYLOAD, "")), works_in)


def _environment(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (variable.partition(b"=") for variable in file.read().split(b"\0"))
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name.startswith(b"HOLDFAST_")}


def _same(one: Process, other: Process) -> bool:
    if one.pid != other.pid:
        return False
    if one.started == other.started:
        return True
    if ON_LINUX:
        return False
    return abs(_number(one) - _number(other)) <= TOLERANCE


def _not_before(process: Process, shim: Process) -> bool:
    """Nothing that is older than its shim belongs to a pod."""
    return _number(process) >= _number(shim) - (0 if ON_LINUX else TOLERANCE)


def _started_at(process: Process) -> float:
    """When it started by the wall clock, as that stands now: after a step of the clock this is off by as much."""
    if not ON_LINUX:
        return _number(process)
    return _number(process) / os.sysconf("SC_CLK_TCK") + time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _number(process: Process) -> float:
    return float(process.started.lstrip("~"))


def _look_linux(pid: int) -> Observed | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        line = os.read(fd, 2048)
    except OSError:  # it ended between the two
        return None
    finally:
        os.close(fd)
    # Behind the name (which may hold anything): state ppid pgrp session … num_threads(17) … starttime(19).
    fields = line[line.rfind(b")") + 2 :].split(b" ", 20)
    zombie = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1  # with more, only its first thread has ended
    return Observed(Process(pid, fields[19].decode()), int(fields[1]), int(fields[3]), zombie)


def _look_elsewhere(pid: int) -> Observed | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            started, zombie = f"~{process.create_time()}", process.status() == psutil.STATUS_ZOMBIE
            return Observed(Process(pid, started), process.ppid(), 0 if zombie else os.getsid(pid), zombie)
    except (psutil.Error, OSError):
        return None
