"""Hand a job over to another container: write its files to a shared folder, and record the claim in the termination message.

On Kubernetes the agent of a job is an init container. The worker's container starts only after the agent exited with 0.
"""

import contextlib
import os
import shlex
from pathlib import Path

import msgspec

from .messages import Assignment

SCRIPT, ASSIGNMENT, PAYLOAD = "run", "assignment.json", "payload.json"
# If /bin/sh is bash, the script would stop at an attempt to set one of these, so they are set for the command only.
SHELLS_OWN = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
NOT_STAGED = 3  # exit code without a hand-over, because 0 would start the worker's container


def stage(folder: Path, assignment: Assignment, argv: list[str]) -> None:
    """Writes the job's files. They are readable by all users, because the worker's container may run as any user; no other pod
    sees this volume."""
    env = {
        **assignment.env,
        **assignment.secrets,
        "HOLDFAST_CLAIM": assignment.claim,
        "HOLDFAST_TENANT": assignment.tenant,
        "HOLDFAST_FENCE": str(assignment.fence),
        "HOLDFAST_PAYLOAD": str(folder / PAYLOAD),
    }
    content = {
        "claim": assignment.claim,
        "tenant": assignment.tenant,
        "fence": assignment.fence,
        "command": argv,
        "env": assignment.env,
        "secrets": assignment.secrets,
        "payload": assignment.payload,
    }
    _write(folder / PAYLOAD, bytes(assignment.payload))
    _write(folder / ASSIGNMENT, msgspec.json.encode(content))
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items() if name not in SHELLS_OWN)
    if own := [f"{name}={value}" for name, value in env.items() if name in SHELLS_OWN]:
        argv = argv and ["env", *own, *argv]
    # The script removes itself, because it contains the claim's secrets. The command has them in its environment.
    start = f"rm -f {shlex.quote(str(folder / SCRIPT))} 2>/dev/null\nexec {shlex.join(argv)}\n" if argv else "exit 0\n"
    _write(folder / SCRIPT, f"#!/bin/sh\n{exports}{start}".encode())


def unstage(folder: Path) -> None:
    """Removes the job's files, because the claim was not accepted."""
    for name in (SCRIPT, ASSIGNMENT, PAYLOAD):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def sign(path: Path, assignment: Assignment) -> None:
    """Writes the termination message, so that the pod's status shows which assignment its container runs."""
    path.write_bytes(msgspec.json.encode({"claim": assignment.claim, "fence": assignment.fence}))


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    os.chmod(new, 0o644)
    os.replace(new, path)
