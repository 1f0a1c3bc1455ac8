"""Hand a job over to another container: put what it should run where it finds it, and say with our own end whose it is.

On Kubernetes the agent of a job is an init container: the worker's container starts when it ended with 0, and only then.
"""

import contextlib
import os
import shlex
from pathlib import Path

import msgspec

from .messages import Assignment

SCRIPT, ASSIGNMENT, PAYLOAD = "run", "assignment.json", "payload.json"
# Where /bin/sh is bash it ends at an attempt to set one of these: they are set for the command alone.
SHELLS_OWN = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
NOT_STAGED = 3  # any other end than a hand-over must not start the worker's container


def stage(folder: Path, assignment: Assignment, argv: list[str]) -> None:
    """Readable by all: the worker's container may run as any user, and nobody else sees this volume."""
    env = {
        **assignment.env,
        **assignment.secrets,
        "HOLDFAST_CLAIM": assignment.claim,
        "HOLDFAST_TENANT": assignment.tenant,
        "HOLDFAST_FENCE": str(assignment.fence),
        "HOLDFAST_PAYLOAD": str(folder / PAYLOAD),
    }
    told = {
        "claim": assignment.claim,
        "tenant": assignment.tenant,
        "fence": assignment.fence,
        "command": argv,
        "env": assignment.env,
        "secrets": assignment.secrets,
        "payload": assignment.payload,
    }
    _write(folder / PAYLOAD, bytes(assignment.payload))
    _write(folder / ASSIGNMENT, msgspec.json.encode(told))
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items() if name not in SHELLS_OWN)
    if own := [f"{name}={value}" for name, value in env.items() if name in SHELLS_OWN]:
        argv = argv and ["env", *own, *argv]
    # It removes itself: the claim's secrets are in it, and the command has them from its environment.
    start = f"rm -f {shlex.quote(str(folder / SCRIPT))} 2>/dev/null\nexec {shlex.join(argv)}\n" if argv else "exit 0\n"
    _write(folder / SCRIPT, f"#!/bin/sh\n{exports}{start}".encode())


def unstage(folder: Path) -> None:
    """The claim is not ours after all."""
    for name in (SCRIPT, ASSIGNMENT, PAYLOAD):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def sign(path: Path, assignment: Assignment) -> None:
    """The termination message: the pod itself says which assignment its container runs for."""
    path.write_bytes(msgspec.json.encode({"claim": assignment.claim, "fence": assignment.fence}))


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    os.chmod(new, 0o644)
    os.replace(new, path)
