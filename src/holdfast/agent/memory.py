"""Remember what we hold: a session in another container outlives its agent, which takes it up again (same pod, same fence)."""

import contextlib
import os
from pathlib import Path

import msgspec

from .messages import Assignment

HELD = "held.json"


class Held(msgspec.Struct, frozen=True):
    """Enough to prove whose we are. Neither secrets nor payload: the claim was activated before."""

    claim: str
    fence: int
    tenant: str
    credential: str | None = None


def remember(folder: Path, held: Assignment) -> None:
    """Readable by ourselves only. In the pod's memory: it goes with the pod, and survives the agent."""
    new = folder / f"{HELD}.new"
    with contextlib.suppress(OSError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(Held(held.claim, held.fence, held.tenant, held.credential)))
    os.replace(new, folder / HELD)


def remembered(folder: Path) -> Assignment | None:
    try:
        held = msgspec.json.decode((folder / HELD).read_bytes(), type=Held)
    except (OSError, msgspec.MsgspecError):
        return None
    return Assignment(claim=held.claim, fence=held.fence, tenant=held.tenant, credential=held.credential)


def forget(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / HELD).unlink()
