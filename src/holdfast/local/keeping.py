"""The high-water mark, which outlives the database's folder, and the signed tokens of pods."""

import contextlib
import fcntl
import hashlib
import hmac
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..ports.cluster import AgentIdentity, ClusterUnavailable
from ..ports.recovery import Remembered

LOCK_SECONDS = 0.5  # a stopped replica that holds the lock must not stop the others


class HighWater:
    """The high-water mark, in a file beside the database's folder. It only rises, no matter which replica writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Remembered | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Remembered)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise ClusterUnavailable(f"cannot read {self.path}: {error}") from error

    def raise_to(self, mark: Remembered) -> None:
        try:
            with self._locked():
                kept = self.read()
                if kept is not None and kept.install == mark.install:
                    mark = kept.raised_to(mark)
                if mark != kept:
                    self._write(msgspec.json.encode(mark))
        except OSError as error:
            raise ClusterUnavailable(f"cannot write {self.path}: {error}") from error

    def _write(self, data: bytes) -> None:
        draft = self.path.with_name(f".{self.path.name}.draft")  # one fixed name is safe, because the lock is held
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ClusterUnavailable(f"another replica holds the lock of {self.path}") from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(fd)


class Tokens:
    """Tokens `<worker>.<uid>.<signature>`: valid for one pod of one installation, as long as that pod exists."""

    def __init__(self, install: str, key: bytes) -> None:
        self._install = install
        self._key = key

    def issue(self, worker: str, uid: str) -> str:
        return f"{worker}.{uid}.{self._sign(worker, uid)}"

    def read(self, token: str) -> AgentIdentity | None:
        """Returns the identity in the token, or None if the signature is wrong."""
        parts = token.rsplit(".", 2)
        if len(parts) != 3 or not token.isascii():
            return None
        worker, uid, signature = parts
        return AgentIdentity(worker, uid) if hmac.compare_digest(signature, self._sign(worker, uid)) else None

    def _sign(self, worker: str, uid: str) -> str:
        text = "\n".join((self._install, worker, uid)).encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
