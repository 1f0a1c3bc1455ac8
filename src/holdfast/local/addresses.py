"""Where the replicas of one machine listen: their unix sockets, and the two files that list them for agents and commands."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from ..unix_socket import PATH_MAX, check_private, to_path, to_url
from .layout import Layout, write_private

# The folder for data directories whose path is too long for a socket. It is not /run/user/<uid>, because that disappears when the
# user logs out, and workers go on.
FALLBACK = Path("/tmp")  # noqa: S108 - we use a private folder below it, and refuse one that another user made
BACKLOG = 2048  # uvicorn's
LOCK_SECONDS = 0.5  # the lists are written within a millisecond


def http_url(host: str, port: int) -> str:
    """Returns the HTTP address. An IPv6 address needs brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the host. A name counts as reachable by others, except for localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def beyond_loopback(layout: Layout) -> list[str]:
    """Returns the HTTP addresses of this fleet that other machines may reach."""
    return [url for url in _read(layout.servers) if not is_loopback(urlsplit(url).hostname or "")]


def socket_of(layout: Layout, port: int) -> Path:
    """Returns the path of the socket of the replica with this port, because no two replicas of a machine share a port. It is
    always the same for a data directory, so that agents find a restarted replica."""
    inside = layout.root.resolve() / "run"
    if len(os.fsencode(inside / "65535.sock")) > PATH_MAX:
        named = f"{os.geteuid()}-{hashlib.sha256(os.fsencode(inside)).hexdigest()[:16]}"
        inside = FALLBACK / f"holdfast-{named}"
    return inside / f"{port}.sock"


def listen(path: Path) -> socket.socket:
    """Returns a socket that listens on this path and replaces what a replica that crashed has left there. The caller already
    listens on the TCP port with this number, so no living replica uses the path. Raises NotPrivate."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    check_private(path.parent)
    draft = path.with_name(f"{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(BACKLOG)
        draft.rename(path)  # it appears when it already listens, so that nobody takes it for a stale one
    except BaseException:
        listener.close()
        draft.unlink(missing_ok=True)
        raise
    return listener


def listens(path: Path) -> bool:
    """Returns whether a process listens on this socket. Any other error than a refusal may pass, so it counts as listening."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


def plan(layout: Layout, urls: dict[int, str]) -> None:
    """Writes both lists for these ports, whose replicas do not listen yet, and removes everything that earlier replicas left.
    Other replicas that listen stay: an operator may run one beside `up` during an upgrade."""
    with _locked(layout):
        planned, folder = [socket_of(layout, port) for port in urls], socket_of(layout, 0).parent
        beside = []
        if folder.exists():
            check_private(folder)
            for path in sorted(folder.iterdir()):
                if not listens(path):
                    path.unlink(missing_ok=True)
                elif path not in planned:
                    beside.append(path)
        ports = [_port(path) for path in beside]
        kept = [url for url in _read(layout.servers) if urlsplit(url).port in ports]
        _write(layout, [*planned, *beside], [*urls.values(), *kept])


def announce(layout: Layout, port: int, url: str) -> None:
    """Adds the addresses of a replica that listens, and removes those of replicas that crashed: their sockets refuse
    connections. An HTTP address without a socket stays, because it may be that of a replica of the release before."""
    with _locked(layout):
        mine, known = socket_of(layout, port), _sockets(layout)
        dead = {_port(path) for path in known if path != mine and not listens(path)}
        _write(
            layout,
            [mine, *(path for path in known if path != mine and _port(path) not in dead)],
            [url, *(each for each in _read(layout.servers) if each != url and urlsplit(each).port not in dead)],
        )


def withdraw(layout: Layout, port: int, url: str) -> None:
    """Removes the addresses and the socket of a replica that leaves."""
    with _locked(layout):
        mine = socket_of(layout, port)
        servers = [each for each in _read(layout.servers) if each != url]
        _write(layout, [path for path in _sockets(layout) if path != mine], servers)
        mine.unlink(missing_ok=True)


def _sockets(layout: Layout) -> list[Path]:
    return [path for url in _read(layout.sockets) if (path := to_path(url)) is not None]


def _port(path: Path) -> int | None:
    return int(path.stem) if re.fullmatch(r"[0-9]{1,5}", path.stem) else None


def _write(layout: Layout, sockets: list[Path], urls: list[str]) -> None:
    for file, lines in ((layout.servers, urls), (layout.sockets, [to_url(path) for path in sockets])):
        if not file.exists() or _read(file) != lines:
            write_private(file, "".join(f"{line}\n" for line in lines).encode())


def _read(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """Holds the lock of both lists, otherwise a replica that starts could write back the address of one that leaves. Raises
    TimeoutError after LOCK_SECONDS, because a replica that was stopped may hold it."""
    lock = os.open(layout.root / ".servers.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another replica holds {layout.root / '.servers.lock'}") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(lock)
