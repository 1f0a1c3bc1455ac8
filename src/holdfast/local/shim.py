"""Hold one pod: start its child, reap its orphans, end the whole tree, and leave the exit code behind.

Run as `python -I -S shim.py FOLDER`, one for each pod. It outlives the replica which started it, so it
imports neither Holdfast nor any package: an upgrade under its feet must not matter, and it has to start in
milliseconds.

The files of FOLDER that it writes: pod.json (itself), agent.json (its child), exit.json (the end), and
`terminating` where somebody else than Holdfast asked it to end. It writes exit.json only when no process of
the pod is left.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time

LOG_LIMIT = 8 << 20  # bytes; checked once a minute, so a burst may exceed it until then
TICK = 60.0  # seconds between looks at the log
ROUND = 0.02  # seconds between two rounds of killing; a child's end cuts it short
NOT_FOUND, NOT_STARTED = 127, 126  # what a shell says

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(folder: str) -> None:
    """Leave the caller's process tree, then hold the pod. The caller waits for the first process only."""
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os._exit(0 if os.read(told, 1) else 1)  # returns once the pod is known, or its shim died
    os.close(told)
    os.setsid()
    wakeup = catch_signals()  # before anybody can know our pid
    held = introduce(folder)
    os.write(tell, b"1")
    os.close(tell)
    if held:
        Shim(folder, wakeup).run()


def catch_signals() -> int:
    """Signals become bytes in a pipe: nothing is interrupted, nothing is missed."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def introduce(folder: str) -> bool:
    """Write pod.json by a link, which fails where one exists: of two shims only the first starts a child."""
    me = {"pid": os.getpid(), "started": started(os.getpid())}
    draft = os.path.join(folder, f".pod.{os.getpid()}")
    write(draft, me)
    try:
        os.link(draft, os.path.join(folder, "pod.json"))
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


class Shim:
    """The parent of everything in the pod, as PID 1 is in a container."""

    def __init__(self, folder: str, wakeup: int) -> None:
        self.folder = folder
        self.wakeup = wakeup
        self.child = 0
        self.code: int | None = None
        self.error: str | None = None
        self.forwarded = False
        self.deadline: float | None = None  # monotonic

    def run(self) -> None:
        if not os.path.exists(self.path("terminating")):
            adopt_orphans()
            self.start()
        while self.child and self.code is None:
            if self.deadline is not None and time.monotonic() >= self.deadline:
                break
            for number in self.wait(TICK):
                if number in FORWARDED:
                    self.end_in_time()
            self.reap()
            self.bound_log()
        self.kill_all()
        self.record()

    def start(self) -> None:
        try:
            with open(self.path("launch.json"), encoding="utf-8") as file:
                launch = json.load(file)
            os.chdir(self.path("work"))
            self.child = os.posix_spawnp(
                launch["argv"][0],
                launch["argv"],
                launch["env"],
                setpgroup=0,  # a signal to its group must not reach us
                setsigmask=[],
                setsigdef=[
                    signal.SIGPIPE,
                    signal.SIGXFSZ,
                ],  # Python ignores them, and a child would inherit that
            )
        except (OSError, ValueError, LookupError) as error:
            self.code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
            self.error = f"cannot start: {error}"
            print(f"holdfast: {self.error}", flush=True)
            return
        try:
            write(self.path("agent.json"), {"pid": self.child, "started": started(self.child)})
        except OSError as error:  # a full disk is no reason to end it
            print(f"holdfast: cannot write agent.json: {error}", flush=True)

    def end_in_time(self) -> None:
        """Pass the wish to end on, once, and set the time by which it has to be granted."""
        try:
            with open(self.path("terminating"), encoding="utf-8") as file:
                mark = json.load(file)
        except (OSError, ValueError):
            mark = {"at": time.time(), "grace": None}
            self.mark(mark)
        if mark["grace"] is not None:
            left = min(max(mark["at"] + mark["grace"] - time.time(), 0.0), mark["grace"])
            until = time.monotonic() + left
            self.deadline = until if self.deadline is None else min(self.deadline, until)
        if self.child and self.code is None and not self.forwarded:
            self.forwarded = True
            os.kill(self.child, signal.SIGTERM)  # not reaped yet, so the pid is still its own

    def mark(self, mark: dict[str, object]) -> None:
        """A shutdown of the machine, say: no deadline, but no new work. Never over Holdfast's own mark."""
        draft = self.path(f".terminating.{os.getpid()}")
        try:
            write(draft, mark)
            os.link(draft, self.path("terminating"))
        except OSError:
            pass
        finally:
            if os.path.exists(draft):
                os.unlink(draft)

    def kill_all(self) -> None:
        """Kill our children until there are none. Each one's children become ours by its death, even those in
        a session of their own; and a child that we have not reaped keeps its pid, so no stranger is hit."""
        self.deadline = None  # it has passed, or does not matter any more
        if self.child and sys.platform != "linux":
            with contextlib.suppress(OSError):
                os.killpg(self.child, signal.SIGKILL)
        while self.reap():
            for pid in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.wait(ROUND)

    def reap(self) -> bool:
        """Collect the dead; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code

    def wait(self, seconds: float) -> bytes:
        """Until a signal, the deadline or `seconds`; the signals that came."""
        if self.deadline is not None:
            seconds = min(seconds, max(self.deadline - time.monotonic(), 0.001))
        if not select.select([self.wakeup], [], [], seconds)[0]:
            return b""
        return os.read(self.wakeup, 4096)

    def record(self) -> None:
        end: dict[str, object] = {"exit_code": self.code, "error": self.error, "at": time.time()}
        try:
            write(self.path("exit.json"), end)
        except OSError:
            os.ftruncate(1, 0)  # the log is worth less than the exit code
            write(self.path("exit.json"), end)

    def bound_log(self) -> None:
        if os.fstat(1).st_size > LOG_LIMIT:
            os.ftruncate(1, 0)  # opened for appending: whoever writes goes on from the start
            print("holdfast: the log was cut here", flush=True)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def adopt_orphans() -> None:
    """Orphans of the pod become our children, wherever they went: else a daemon would outlive its pod."""
    if sys.platform == "linux":
        try:
            import ctypes  # late: it is a third of the start

            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        except (ImportError, OSError, AttributeError) as error:
            print(f"holdfast: cannot adopt orphans: {error}", flush=True)


def children() -> list[int]:
    """Our direct children."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return [pid for pid in processes() if parent(pid) == me]


def processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def parent(pid: int) -> int:
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def started(pid: int) -> str:
    """With the pid this is a process's identity. Linux: ticks since boot; elsewhere the wall clock."""
    fields = stat(pid)
    return fields[19].decode() if fields else f"~{time.time()}"


def stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat behind the name, which may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def write(path: str, value: dict[str, object]) -> None:
    """All or nothing: readers see the old file or the new one."""
    draft = f"{path}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(draft, path)


if __name__ == "__main__":
    main(sys.argv[1])
