"""Runs one container as PID 1 of its own process namespace, with its volumes mounted in a private mount namespace.

`python -I -S launcher.py SPEC`, where SPEC is a JSON file with these fields: `parent` (the PID of the process that starts the
launcher), `argv`, `env`, `cwd`, `mounts` (each with `source`, `target`, `read_only`), `pid_file`, `exit_file` (empty until the
exit code is known; it survives a reboot) and `report`. `report` is a file descriptor. It is closed when the program runs, or
receives the reason why the program does not run. The launcher stays as the parent of the program. It forwards SIGTERM, kills the
program on SIGUSR1, and exits with the exit code of the program (128 + signal if a signal ended it).

As in a real container, all other processes die with PID 1, and PID 1 does not receive signals for which it has no handler.
A container never survives its kubelet. The launcher imports little, because it is started for every container.
"""

import ctypes
import json
import os
import select
import signal
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER = 0x00020000, 0x20000000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
COULD_NOT_START = 128  # the exit code that containerd reports
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
HEARD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)

libc = ctypes.CDLL(None, use_errno=True)


class LaunchError(Exception):
    pass


def main(spec_path: str) -> int:
    die_with_parent()
    with open(spec_path, encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    if os.getppid() != spec["parent"]:
        return COULD_NOT_START  # the parent died before the parent-death signal was set
    # opened now, because a mount may hide its path later
    pid_file = os.open(spec["pid_file"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    exit_file = os.open(spec["exit_file"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    report: int = spec["report"]
    os.set_inheritable(report, False)  # so that the start of the program closes it
    try:
        if os.geteuid() != 0:
            become_root()
        must(libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
        make_mounts(spec["mounts"])
    except (LaunchError, OSError) as error:
        os.write(report, str(error).encode())
        return COULD_NOT_START
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)  # before the fork, so that no early signal is lost
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(theirs)
            become(spec, ours)
        except BaseException as error:
            os.write(report, str(error).encode())
            os._exit(COULD_NOT_START)
    os.write(pid_file, str(child).encode())
    os.close(report)
    code = attend(child)
    os.write(exit_file, str(code).encode())
    return code


def become_root() -> None:
    """Enters a new user namespace as its root. Where the system does not allow that, only root can run containers."""
    uid, gid = os.geteuid(), os.getegid()
    must(libc.unshare(CLONE_NEWUSER), "unshare (running containers needs root here)")
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(content)
    die_with_parent()  # because a change of credentials clears the parent-death signal


def make_mounts(mounts: list[dict[str, Any]]) -> None:
    # A mount may hide the path of a later mount's source. An open file descriptor still works then.
    sources = [os.open(each["source"], os.O_PATH) for each in mounts]
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
    make_devices()
    for source, each in sorted(zip(sources, mounts, strict=True), key=lambda pair: len(pair[1]["target"])):
        target = os.path.realpath(each["target"])  # because /var/run is a link to /run
        if os.path.isdir(f"/proc/self/fd/{source}"):
            make_folder(target)
        else:
            make_folder(os.path.dirname(target))
            if not os.path.exists(target):
                must_be_ours(target)
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(f"/proc/self/fd/{source}", target, None, MS_BIND)
        if each["read_only"]:
            mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
        os.close(source)


def make_devices() -> None:
    """Mounts a private /dev, because Kubernetes expects the termination message of a container in /dev/termination-log."""
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES if os.path.exists(f"/dev/{name}")}
    mount("tmpfs", "/dev", "tmpfs", 0, "mode=755")
    for name, descriptor in devices.items():
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        mount(f"/proc/self/fd/{descriptor}", f"/dev/{name}", None, MS_BIND)
        os.close(descriptor)
    for name, target in LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")


def make_folder(path: str) -> None:
    if not os.path.isdir(path):
        must_be_ours(path)
        os.makedirs(path, mode=0o755)


def must_be_ours(path: str) -> None:
    """Refuses paths outside of /run and /dev, because a folder there would be created on the machine itself."""
    if not path.startswith(("/run/", "/dev/")):
        raise LaunchError(f"mount point {path} does not exist on this machine, and a test kubelet makes them below /run only")


def become(spec: dict[str, Any], parent: int) -> None:
    die_with_parent()
    if select.select([parent], [], [], 0)[0]:
        # the other end of the pipe is closed, so the parent died before the parent-death signal was set
        os._exit(COULD_NOT_START)
    mount("proc", "/proc", "proc", 0)
    os.setsid()
    for each in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(each, signal.SIG_DFL)  # because Python ignores these signals, and the program would inherit that
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    os.chdir(spec["cwd"])
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


def attend(child: int) -> int:
    while True:
        received = signal.sigwait(HEARD)
        if received == signal.SIGTERM:
            os.kill(child, signal.SIGTERM)
        elif received == signal.SIGUSR1:
            os.kill(child, signal.SIGKILL)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def die_with_parent() -> None:
    must(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    args = [None if each is None else each.encode() for each in (source, target, kind, options)]
    must(libc.mount(args[0], args[1], args[2], ctypes.c_ulong(flags), args[3]), f"mount {target}")


def must(result: int, what: str) -> None:
    if result != 0:
        raise LaunchError(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
