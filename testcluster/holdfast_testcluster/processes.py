"""Start processes that cannot outlive us, and end them."""

import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# A parent-death signal fires when the *thread* that started the child ends. Tests start things from threads that come and go,
# so that one lasting thread starts all of them.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")


def spawn(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> "subprocess.Popen[bytes]":
    """Start it in a session of its own; it is killed when this process is gone, however that ended."""

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
    """SIGTERM, and SIGKILL after the grace (seconds); 0 means SIGKILL at once."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGCONT)  # a stopped process does not hear SIGTERM
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
    """The end of a log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to outgoing connections: still ours after a server on one was stopped."""
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
