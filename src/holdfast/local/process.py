"""Identify processes, find the processes of a pod, and never signal a stranger that got a reused pid.

A process is identified by its pid and its start time. On Linux the start time is exact (ticks since boot, from /proc).
On other systems psutil's wall-clock time is compared with a tolerance.
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
TOLERANCE = 2.0  # seconds; allowed difference between the start time of the kernel and that of a wall clock
UID, PAYLOAD = "HOLDFAST_POD_UID", "HOLDFAST_PAYLOAD"  # variables in the environment of the agent, and of each of its jobs


class Process(msgspec.Struct, frozen=True):
    """The identity of a process until the machine restarts."""

    pid: int
    started: str


Groups = Sequence[tuple[int, float]]  # process groups that an agent started: pid, and wall-clock time of the start
NO_SHIM = Process(0, "0")  # written to pod.json instead of a shim, so that no shim can start any more


class ProcessEntry(msgspec.Struct, frozen=True):
    """One line of the process table."""

    process: Process
    parent: int
    session: int
    zombie: bool = False


def _boot() -> str:
    """Returns the id of this boot and PID namespace. A pod of another boot has no living process, even if its pids exist."""
    if not ON_LINUX:
        return ""
    parts = ["", ""]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts[0] = file.read().strip()
    with contextlib.suppress(OSError):
        parts[1] = os.readlink("/proc/self/ns/pid")
    return " ".join(parts)


BOOT = _boot()


def alive(process: Process) -> bool:
    """Returns whether exactly this process runs. A zombie does not run."""
    seen = look(process.pid)
    if seen is None or not _same(seen.process, process):
        return False
    if seen.zombie and seen.parent == os.getpid():
        # As PID 1 of a container this process inherits the shims. No other code waits for a shim, so it is reaped here.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return not seen.zombie


def look(pid: int) -> ProcessEntry | None:
    """Returns the process that has this pid now, if any."""
    return _look_linux(pid) if ON_LINUX else _look_elsewhere(pid)


def send(process: Process, number: signal.Signals) -> bool:
    """Signals exactly this process; returns False if it is gone. The pidfd is opened before the check, because it always names
    the same process: a process that reuses the pid is never signalled."""
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
    except (ProcessLookupError, PermissionError):  # gone, or it runs as another user now
        return False


class Kin(msgspec.Struct, frozen=True):
    """The living processes of a pod. `sure` may be signalled; `perhaps` only show that the pod may still live."""

    sure: tuple[Process, ...] = ()
    perhaps: tuple[Process, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sure or self.perhaps)


class Traces(msgspec.Struct, frozen=True):
    """Signs of the pod that a process belongs to; empty if there are none or they cannot be read."""

    uid: str = ""
    folder: str = ""
    works_in: str = ""


class Table:
    """All visible processes of the machine, read at nearly the same moment."""

    def __init__(self) -> None:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if ON_LINUX else psutil.pids()
        found = (look(pid) for pid in pids)
        self.seen = {entry.process.pid: entry for entry in found if entry is not None and not entry.zombie}
        self._traces: dict[int, Traces] = {}

    def traces(self, pid: int) -> Traces:
        """Returns the signs of a process. They are read once, because they are needed for many pods."""
        if pid not in self._traces:
            self._traces[pid] = _traces(pid)
        return self._traces[pid]


def kin(uid: str, shim: Process, agent: Process | None, table: Table, folder: str = "", groups: Groups = ()) -> Kin:
    """Returns the living processes of a pod whose shim, the parent of them all, may have been killed.

    A command of the agent has its own session and environment. So there are several signs: the session, the parent processes,
    the pod's UID or folder in the environment, and the agent's list of the groups that it started (`groups`).

    The kernel keeps the shim's pid reserved while its session has members. So if the shim or the agent lives, the session surely
    belongs to the pod. If a stranger has the shim's pid, the session is surely empty. In all other cases a member of the session
    is only in `perhaps`. So is a process that works in the pod's folder: it may be a command of the pod without any other sign,
    or the shell of a person.
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
            continue  # it belongs to another pod
        elif (entry.session == shim.pid and not usurped) or _below(traces.works_in, folder):
            perhaps.append(entry.process)
    for pid in _descendants(set(ours), seen):
        ours[pid] = seen[pid].process
    ours.pop(os.getpid(), None)
    return Kin(tuple(ours.values()), tuple(p for p in perhaps if p.pid not in ours))


def _descendants(roots: set[int], seen: Mapping[int, ProcessEntry]) -> Iterator[int]:
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
    """Returns whether the process is not older than the shim. An older process cannot belong to the pod."""
    return _number(process) >= _number(shim) - (0 if ON_LINUX else TOLERANCE)


def _started_at(process: Process) -> float:
    """Returns the wall-clock time of the start. If the clock was set since then, the result is wrong by the same amount."""
    if not ON_LINUX:
        return _number(process)
    return _number(process) / os.sysconf("SC_CLK_TCK") + time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _number(process: Process) -> float:
    return float(process.started.lstrip("~"))


def _look_linux(pid: int) -> ProcessEntry | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        line = os.read(fd, 2048)
    except OSError:  # the process ended between open and read
        return None
    finally:
        os.close(fd)
    # The fields after the name, which may contain any character: state ppid pgrp session … num_threads(17) … starttime(19).
    fields = line[line.rfind(b")") + 2 :].split(b" ", 20)
    zombie = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1  # with more threads only the first has ended
    return ProcessEntry(Process(pid, fields[19].decode()), int(fields[1]), int(fields[3]), zombie)


def _look_elsewhere(pid: int) -> ProcessEntry | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            started, zombie = f"~{process.create_time()}", process.status() == psutil.STATUS_ZOMBIE
            return ProcessEntry(Process(pid, started), process.ppid(), 0 if zombie else os.getsid(pid), zombie)
    except (psutil.Error, OSError):
        return None
