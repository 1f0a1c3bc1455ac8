"""Keep one control plane for all test processes of a run: it starts with the first that wants it and ends after the last.

Each test process holds a connection to the keeper. The system closes it whatever way that process ends, so nothing is counted and
nothing outlives a killed run.
"""

import contextlib
import fcntl
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast_testcluster.access import Access
from holdfast_testcluster.control_plane import ControlPlane
from holdfast_testcluster.processes import tail

READY = b"ready\n"
HERE = Path(__file__).parents[1]


@contextlib.contextmanager
def shared_control_plane(base: Path) -> Iterator[Access]:
    """The control plane of the run whose test processes share the folder `base`."""
    connection, folder = _join(base)
    try:
        yield Access(folder)
    finally:
        connection.close()


def _join(base: Path) -> tuple[socket.socket, Path]:
    pointer = base / "control-plane"  # says where the keeper listens
    for _ in range(3):  # one that we reach in its last moment hangs up on us
        with (base / "control-plane.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = _connect(pointer) or _start_keeper(base, pointer)
        folder = Path(pointer.read_text())
        with contextlib.suppress(ConnectionError):
            if connection.recv(len(READY)) == READY:  # waits until it is ready
                return connection, folder
        connection.close()
    raise AssertionError(f"the control plane did not start: {tail(folder / 'keeper.log', 40)}")


def _connect(pointer: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(Path(pointer.read_text()) / "keeper"))
        return connection
    except OSError:
        connection.close()
        return None


def _start_keeper(base: Path, pointer: Path) -> socket.socket:
    # Not in `base`: a socket's path may have 107 bytes only.
    folder = Path(tempfile.mkdtemp(prefix="hf-kube-"))
    pointer.write_text(str(folder))
    with socket.socket(socket.AF_UNIX) as listener, (folder / "keeper.log").open("w") as log:
        listener.bind(str(folder / "keeper"))
        listener.listen(64)
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "holdfast_testcluster.keeper",
                str(listener.fileno()),
                str(folder),
                str(base / f"control-plane-{time.time_ns()}"),
            ],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=HERE,
            start_new_session=True,  # Ctrl-C is for the tests: it ends when they have ended
        )
    connection = _connect(pointer)
    assert connection
    return connection


def keep(listener: socket.socket, folder: Path, logs: Path) -> None:
    """Until nobody is connected any more."""
    with ControlPlane(folder), selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        held: set[socket.socket] = set()
        came = False
        while held or not came:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connection.sendall(READY)
                    held.add(connection)
                    selector.register(connection, selectors.EVENT_READ)
                    came = True
                else:
                    connection = key.fileobj  # type: ignore[assignment]  # nobody sends anything: it was closed
                    selector.unregister(connection)
                    held.discard(connection)
        listener.close()
    logs.mkdir(parents=True, exist_ok=True)
    for each in folder.glob("*.log"):
        shutil.copy(each, logs)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the context manager stops everything
    keep(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
