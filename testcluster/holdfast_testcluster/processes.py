"""Starts processes that end with this process, and ends them."""

import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# A parent-death signal is sent when the *thread* that started the child ends. Threads of tests come and go, so one thread that
# stays starts all children.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")


def spawn(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> "subprocess.Popen[bytes]":
    """Starts a process in its own session. It is killed when this process is gone, however this process ended."""

    def start() -> "subprocess.Popen[bytes]":
        with log.open("ab") as out:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    return _spawner.submit(start).result()


def end(process: "subprocess.Popen[bytes]", grace: float) -> None:
    """Sends SIGTERM, and SIGKILL after `grace` seconds. 0 sends SIGKILL at once."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGCONT)  # because a stopped process does not handle SIGTERM
    if grace > 0:
        process.terminate()
        try:
            process.wait(grace)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()


def tail(log: Path, lines: int = 15) -> str:
    """Returns the end of a log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def free_ports(count: int) -> list[int]:
    """Returns ports that the system does not use for outgoing connections, so that a stopped server can get its port back."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", random.SystemRandom().randrange(11_000, 32_000)))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
