"""The parent process of one pod: it starts the child, reaps orphans, ends the whole tree, and stores the exit code.

Each pod has a shim, started as `python -I -S shim.py FOLDER`. It outlives the replica that started it. It imports neither
Holdfast nor any package, because an upgrade must not break a running shim, and because it has to start in milliseconds.

It writes these files in FOLDER: pod.json (its own identity), agent.json (its child), exit.json (the end), and `terminating`
if it was asked to end, but not by Holdfast. It writes exit.json only when no process of the pod is left.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time

LOG_LIMIT = 8 << 20  # bytes; checked once per minute, so a burst may exceed it for a while
TICK = 60.0  # seconds between two checks of the log's size
ROUND = 0.02  # seconds between two rounds of killing; a child's end starts the next round at once
NOT_FOUND, NOT_STARTED = 127, 126  # the exit codes of a shell

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(folder: str) -> None:
    """Leaves the caller's process tree, then runs the shim. The caller waits for the first process only."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os._exit(0 if os.read(reader, 1) else 1)  # the read returns when pod.json exists, or when the shim died
    os.close(reader)
    os.setsid()
    wakeup = catch_signals()  # before pod.json shows this pid to other processes
    held = introduce(folder)
    os.write(writer, b"1")
    os.close(writer)
    if held:
        Shim(folder, wakeup).run()


def catch_signals() -> int:
    """Turns signals into bytes in a pipe, so that they interrupt nothing and none is missed. Returns the pipe."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def introduce(folder: str) -> bool:
    """Writes pod.json; returns False if it exists. A link never replaces a file, so only one of two shims starts a child."""
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
    """The parent of all processes in the pod, like PID 1 in a container."""

    def __init__(self, folder: str, wakeup: int) -> None:
        self.folder = folder
        self.wakeup = wakeup
        self.child = 0
        self.code: int | None = None
        self.error: str | None = None
        self.forwarded = False
        self.deadline: float | None = None  # in monotonic time

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
                setpgroup=0,  # a signal to the child's group must not reach the shim
                setsigmask=[],
                setsigdef=[
                    signal.SIGPIPE,
                    signal.SIGXFSZ,
                ],  # Python ignores these signals, and the child would inherit that
            )
        except (OSError, ValueError, LookupError) as error:
            self.code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
            self.error = f"cannot start: {error}"
            print(f"holdfast: {self.error}", flush=True)
            return
        try:
            write(self.path("agent.json"), {"pid": self.child, "started": started(self.child)})
        except OSError as error:  # a full disk is no reason to end the pod
            print(f"holdfast: cannot write agent.json: {error}", flush=True)

    def end_in_time(self) -> None:
        """Forwards SIGTERM to the child, once, and sets the deadline after which the shim kills all."""
        try:
            with open(self.path("terminating"), encoding="utf-8") as file:
                termination = json.load(file)
        except (OSError, ValueError):
            termination = {"at": time.time(), "grace": None}
            self.store_termination(termination)
        if termination["grace"] is not None:
            left = min(max(termination["at"] + termination["grace"] - time.time(), 0.0), termination["grace"])
            until = time.monotonic() + left
            self.deadline = until if self.deadline is None else min(self.deadline, until)
        if self.child and self.code is None and not self.forwarded:
            self.forwarded = True
            os.kill(self.child, signal.SIGTERM)  # the child is not reaped yet, so the pid is still its own

    def store_termination(self, termination: dict[str, object]) -> None:
        """Stores that the pod ends for another reason, for example a shutdown of the machine: it gets no new work, but has no
        deadline. Never replaces what Holdfast stored."""
        draft = self.path(f".terminating.{os.getpid()}")
        try:
            write(draft, termination)
            os.link(draft, self.path("terminating"))
        except OSError:
            pass
        finally:
            if os.path.exists(draft):
                os.unlink(draft)

    def kill_all(self) -> None:
        """Kills the shim's children until none are left. When a child dies, its children become the shim's children, even if
        they have their own session. A child that is not reaped yet keeps its pid, so no stranger is killed."""
        self.deadline = None  # it has passed, or is not needed any more
        if self.child and sys.platform != "linux":
            with contextlib.suppress(OSError):
                os.killpg(self.child, signal.SIGKILL)
        while self.reap():
            for pid in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.wait(ROUND)

    def reap(self) -> bool:
        """Reaps the children that ended. Returns whether any child is left."""
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
        """Waits until a signal or the deadline, at most `seconds`. Returns the signals that arrived."""
        if self.deadline is not None:
            seconds = min(seconds, max(self.deadline - time.monotonic(), 0.001))
        if not select.select([self.wakeup], [], [], seconds)[0]:
            return b""
        return os.read(self.wakeup, 4096)

    def record(self) -> None:
        """Writes exit.json."""
        end: dict[str, object] = {"exit_code": self.code, "error": self.error, "at": time.time()}
        try:
            write(self.path("exit.json"), end)
        except OSError:
            os.ftruncate(1, 0)  # on a full disk the exit code is more important than the log
            write(self.path("exit.json"), end)

    def bound_log(self) -> None:
        if os.fstat(1).st_size > LOG_LIMIT:
            os.ftruncate(1, 0)  # the log is opened for appending, so writers continue at the start
            print("holdfast: the log was cut here", flush=True)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def adopt_orphans() -> None:
    """Makes all orphans of the pod children of the shim. Otherwise a daemon would outlive its pod."""
    if sys.platform == "linux":
        try:
            import ctypes  # imported here, because it takes a third of the start time

            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        except (ImportError, OSError, AttributeError) as error:
            print(f"holdfast: cannot adopt orphans: {error}", flush=True)


def children() -> list[int]:
    """Returns the shim's direct children."""
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
    """Returns the start time, which identifies a process together with its pid. Linux: ticks since boot; others: wall clock."""
    fields = stat(pid)
    return fields[19].decode() if fields else f"~{time.time()}"


def stat(pid: int) -> list[bytes]:
    """Returns the fields of /proc/PID/stat after the name, because the name may contain any character."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def write(path: str, value: dict[str, object]) -> None:
    """Replaces the file in one step, so that readers see the old or the new content."""
    draft = f"{path}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(draft, path)


if __name__ == "__main__":
    main(sys.argv[1])
