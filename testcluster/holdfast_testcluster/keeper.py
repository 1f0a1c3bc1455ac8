"""Keeps one control plane for all test processes of a run. The first process that needs it starts it; it ends after the last.

Each test process holds a connection to the keeper. The system closes the connection however that process ends, so the keeper
needs no counter, and a killed run leaves nothing behind.
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
    """Yields the control plane of the run whose test processes share the folder `base`."""
    connection, folder = _join(base)
    try:
        yield Access(folder)
    finally:
        connection.close()


def _join(base: Path) -> tuple[socket.socket, Path]:
    pointer = base / "control-plane"  # the file names the folder of the keeper
    for _ in range(3):  # retry, because a keeper that is about to end closes the connection
        with (base / "control-plane.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = _connect(pointer) or _start_keeper(base, pointer)
        folder = Path(pointer.read_text())
        with contextlib.suppress(ConnectionError):
            if connection.recv(len(READY)) == READY:  # blocks until the control plane is ready
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
    # Not in `base`, because the path of a socket may have at most 107 bytes.
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
            start_new_session=True,  # so that Ctrl-C ends the tests first; the keeper ends after them
        )
    connection = _connect(pointer)
    assert connection
    return connection


def keep(listener: socket.socket, folder: Path, logs: Path) -> None:
    """Runs a control plane until no test process is connected any more."""
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
                    connection = key.fileobj  # type: ignore[assignment]  # test processes send nothing, so it was closed
                    selector.unregister(connection)
                    held.discard(connection)
        listener.close()
    logs.mkdir(parents=True, exist_ok=True)
    for each in folder.glob("*.log"):
        shutil.copy(each, logs)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the context manager stops everything
    keep(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
