"""Hand a job over to another container: write its files to a shared folder, and record the claim in the termination message.

On Kubernetes the agent of a job is an init container. The worker's container starts only after the agent exited with 0.
"""

import contextlib
import os
import shlex
from pathlib import Path
from typing import Any

import msgspec

from .messages import Assignment

SCRIPT, VARIABLES, ASSIGNMENT, PAYLOAD = "run", "variables", "assignment.json", "payload.json"
# If /bin/sh is bash, the script would stop at an attempt to set one of these, so they are set for the command only.
SHELLS_OWN = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
NOT_STAGED = 3  # exit code without a hand-over, because 0 would start the worker's container


def stage(folder: Path, assignment: Assignment, argv: list[str]) -> None:
    """Writes the job's files, for the worker's container alone: no other container sees them. That container may run as any user,
    so any user may read them, and may overwrite and remove them. The volume's own folder is sticky on a real node, where no other
    user could remove a file of the agent, so the files have a folder of their own."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o777)
    env = {
        **assignment.own_variables(),
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
        "payload": assignment.payload,
    }
    _write(folder / PAYLOAD, bytes(assignment.payload))
    _write(folder / ASSIGNMENT, msgspec.json.encode({**content, "secrets": assignment.secrets}))
    _write(folder / VARIABLES, _variables(env).encode())
    _write(folder / SCRIPT, _script(folder, env, content, argv).encode())


def _variables(env: dict[str, str]) -> str:
    """Returns what the script reads first: it sets the variables, and keeps those that only the command gets as arguments."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items() if name not in SHELLS_OWN)
    own = [f"{name}={value}" for name, value in env.items() if name in SHELLS_OWN]
    return f"{exports}set -- {shlex.join(own)}\n" if own else exports


def _script(folder: Path, env: dict[str, str], content: dict[str, Any], argv: list[str]) -> str:
    """Returns the script of the worker's container. It contains no secret: it reads the variables from a file, erases the secrets
    from that file and from the assignment, and starts the command. The erasing uses only what is built into a shell, because an
    image may have no `rm`. A file that cannot be written does not prevent the command from starting."""
    variables, assignment = (shlex.quote(str(folder / name)) for name in (VARIABLES, ASSIGNMENT))
    shown = shlex.quote(msgspec.json.encode({**content, "secrets": {}}).decode())
    start = f'exec env "$@" {shlex.join(argv)}' if SHELLS_OWN & env.keys() else f"exec {shlex.join(argv)}"
    return (
        "#!/bin/sh\n"
        f". {variables}\n"
        f"true 2>/dev/null >{variables}\n"
        f"printf '%s\\n' {shown} 2>/dev/null >{assignment}\n"
        f"{start if argv else 'exit 0'}\n"
    )


def unstage(folder: Path) -> None:
    """Removes the job's files, because the claim was not accepted."""
    for name in (SCRIPT, VARIABLES, ASSIGNMENT, PAYLOAD):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def sign(path: Path, assignment: Assignment) -> None:
    """Writes the termination message, so that the pod's status shows which assignment its container runs."""
    path.write_bytes(msgspec.json.encode({"claim": assignment.claim, "fence": assignment.fence}))


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.chmod(0o666)  # whatever the umask is
    os.replace(new, path)
