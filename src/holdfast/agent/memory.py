"""What a session's agent keeps for itself, should it be restarted alone: its worker lives on in another container."""

import contextlib
import os
from pathlib import Path

import msgspec

from .log import log
from .messages import Assignment, Hooks, Registration

KEPT = "kept.json"


class Settings(msgspec.Struct, frozen=True):
    """Of our first registration: a pool that was changed since is not what this pod was made from."""

    mode: str
    worker: Hooks
    grace: float
    output_limit: int


class Held(msgspec.Struct, frozen=True):
    """Enough to prove whose we are. Neither secrets nor payload: the claim was activated before."""

    claim: str
    fence: int
    tenant: str
    credential: str | None = None

    def assignment(self) -> Assignment:
        return Assignment(claim=self.claim, fence=self.fence, tenant=self.tenant, credential=self.credential)


class Kept(msgspec.Struct, frozen=True):
    settings: Settings
    held: Held | None = None
    served: int | None = None  # the fence of the last claim that it served: it is no new worker
    reset: bool = True  # since then


class Memory:
    """One file, in the pod's memory, which only our own container sees: it goes with the pod, and survives the agent."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEPT
        self.kept = self._read()

    def begin(self, registration: Registration) -> Registration:
        """With the settings that held when we first started. Raises OSError."""
        if self.kept is None:
            r = registration
            self._write(Kept(Settings(r.mode, r.worker, r.grace, r.output_limit)))
            return registration
        settings = self.kept.settings
        return msgspec.structs.replace(
            registration, mode=settings.mode, worker=settings.worker, grace=settings.grace, output_limit=settings.output_limit
        )

    def hold(self, given: Assignment, served: int | None) -> None:
        """From before its acknowledgement, whose answer may be lost with us. Raises OSError."""
        assert self.kept is not None
        held = Held(given.claim, given.fence, given.tenant, given.credential)
        self._write(Kept(self.kept.settings, held, served))

    def let_go(self, served: int | None, *, reset: bool = True) -> None:
        """What we held has ended. Where this cannot be written, a restarted agent is told so by the server."""
        assert self.kept is not None
        try:
            self._write(Kept(self.kept.settings, None, served, reset))
        except OSError as error:
            log("cannot remember", why=error.strerror)

    def _read(self) -> Kept | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self, kept: Kept) -> None:
        """Readable by ourselves only; the old one or the new one, whenever we die."""
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(kept))
        new.replace(self._path)
        self.kept = kept
