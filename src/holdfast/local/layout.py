"""The data directory of a fleet on one machine: its files, who may read them, and the lock of `holdfast up`."""

import contextlib
import fcntl
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from ..ids import Ids


@dataclass(frozen=True)
class Layout:
    """The paths of the files and folders below a data directory."""

    root: Path

    @property
    def key(self) -> Path:
        return self.root / "key"

    @property
    def install(self) -> Path:
        return self.root / "install"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def servers(self) -> Path:
        """The replicas' HTTP addresses. Agents of the release before read this file; they cannot use sockets."""
        return self.root / "servers"

    @property
    def sockets(self) -> Path:
        """The addresses of the replicas' unix sockets, for agents and for commands on this machine."""
        return self.root / "sockets"

    @property
    def workers(self) -> Path:
        return self.root / "workers"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def highwater(self) -> Path:
        return self.root / "highwater.json"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    def ensure(self) -> list[str]:
        """Creates the private files that a replica needs before it starts. The content of existing files is not changed. Returns
        the names of files that other users could read until now."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = close_to_others(self.root)
        _keep(self.key, secrets.token_bytes(32))
        _keep(self.install, f"i-{secrets.token_hex(6)}\n".encode())
        _keep(self.token, f"{Ids().token()}\n".encode())
        return opened


def open_to_others(root: Path) -> list[Path]:
    """Returns the data directory and those of its files that other users can use. Files of another account (Postgres's, if the
    fleet runs as root) are left out, because that account protects them itself. The group may pass through the directory, but
    not list it: with that, Postgres's account reaches its own folder (postgres/embedded.py)."""
    found = [root] if stat.S_IMODE(root.stat().st_mode) & ~0o710 & 0o077 else []
    for entry in os.scandir(root):
        with contextlib.suppress(FileNotFoundError):  # a draft that another replica has just renamed
            about = entry.stat(follow_symlinks=False)
            if about.st_uid == os.geteuid() and not entry.is_symlink() and about.st_mode & 0o077:
                found.append(Path(entry.path))
    return found


def close_to_others(root: Path) -> list[str]:
    """Takes the rights of other users away, and returns the names of the files that had such rights."""
    closed = []
    for path in open_to_others(root):
        with contextlib.suppress(FileNotFoundError):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & (0o710 if path == root else 0o700))
            closed.append(path.name)
    return closed


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file as a whole. Only its owner can read it."""
    draft = _draft(path, content)
    draft.replace(path)


def _keep(path: Path, content: bytes) -> None:
    """Writes a private file if it does not exist yet. The file appears complete, so that a reader never sees half of it."""
    if path.exists():
        return
    draft = _draft(path, content)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()


def _draft(path: Path, content: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return draft


class AlreadyUp(Exception):
    """Another `holdfast up` runs on this data directory."""


def only_one(root: Path) -> int:
    """Locks the data directory and returns the lock's file descriptor. A second `up` on the same directory would stop the
    first one's Postgres when it exits."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(root / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode().strip()
        os.close(lock)
        raise AlreadyUp(f"another `holdfast up` (pid {owner or 'unknown'}) runs on {root}") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
