"""State that a session's agent stores for its own restart, while its worker lives on in another container."""

import contextlib
import os
from pathlib import Path

import msgspec

from .log import log
from .messages import Assignment, Hooks, Registration

KEPT = "kept.json"


class PodSettings(msgspec.Struct, frozen=True):
    """The settings of the first registration. They still apply after the pool was changed, because the pod was made from them."""

    mode: str
    worker: Hooks
    grace: float
    output_limit: int


class Held(msgspec.Struct, frozen=True):
    """Proves which claim the worker has. Secrets and payload are not stored, because the claim was already activated."""

    claim: str
    fence: int
    tenant: str
    credential: str | None = None

    def assignment(self) -> Assignment:
        return Assignment(claim=self.claim, fence=self.fence, tenant=self.tenant, credential=self.credential)


class Kept(msgspec.Struct, frozen=True):
    settings: PodSettings
    held: Held | None = None
    served: int | None = None  # the fence of the last claim that the worker served; None if it is new
    reset: bool = True  # whether the worker was reset since that claim


class Memory:
    """One file in a memory volume that only the agent's container sees. It survives the agent, and disappears with the pod."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEPT
        self.kept = self._read()

    def begin(self, registration: Registration) -> Registration:
        """Returns the registration with the settings of the first start, and stores them at that start. Raises OSError."""
        if self.kept is None:
            r = registration
            self._write(Kept(PodSettings(r.mode, r.worker, r.grace, r.output_limit)))
            return registration
        settings = self.kept.settings
        return msgspec.structs.replace(
            registration, mode=settings.mode, worker=settings.worker, grace=settings.grace, output_limit=settings.output_limit
        )

    def hold(self, given: Assignment, served: int | None) -> None:
        """Stores the claim. Called before the acknowledgement, because its answer may be lost with the agent. Raises OSError."""
        assert self.kept is not None
        held = Held(given.claim, given.fence, given.tenant, given.credential)
        self._write(Kept(self.kept.settings, held, served))

    def let_go(self, served: int | None, *, reset: bool = True) -> None:
        """Stores that the claim ended. If the write fails, a restarted agent learns the end from the server."""
        assert self.kept is not None
        try:
            self._write(Kept(self.kept.settings, None, served, reset))
        except OSError as error:
            log("state not stored", why=error.strerror)

    def _read(self) -> Kept | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self, kept: Kept) -> None:
        """Replaces the file in one step, so that a crash leaves the old or the new content. Only the agent's user can read it."""
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(kept))
        new.replace(self._path)
        self.kept = kept
