"""Start a pod: decide what it runs, reserve its name with everything in it, let a shim loose."""

import errno
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..model.pool import PoolSpec
from ..ports.cluster import ClusterUnavailable, Order, Refused
from .folder import Facts, Folder, Launch, OrderFile, StampFile, remove_tree
from .process import BOOT

SHIM = Path(__file__).with_name("shim.py")
START_TIMEOUT = 10.0  # seconds; a shim needs 0.05, a machine that swaps may need all of it
ABANDONED = 2.0  # seconds without a shim, after which the creator is taken for dead
PASSED_ON = ("PATH", "HOME", "LANG")  # nothing else: the server's environment holds its secrets
FULL = {errno.ENOSPC, errno.EDQUOT}
# -P: a file that a command leaves in the agent's working folder must not be imported by the agent.
AGENT = [sys.executable, "-P", "-m", "holdfast.agent"]


class Places(msgspec.Struct, frozen=True):
    root: Path
    output_root: Path
    servers_file: Path


def command(spec: PoolSpec, agent_argv: list[str]) -> list[str] | Refused:
    """What a pod of this pool runs."""
    if spec.worker.agent:
        return agent_argv
    argv = spec.worker.serve or spec.worker.run
    if not argv:
        return Refused("invalid", "worker.run is empty: without an agent nothing else says what to run")
    if any("\0" in argument for argument in argv):
        return Refused("invalid", "worker.run holds a NUL character")
    if shutil.which(argv[0]) is None:
        return Refused("invalid", f"worker.run: {argv[0]!r} is not a program on this machine")
    return list(argv)


def reserve(order: Order, argv: list[str], install: str, places: Places, token: Callable[[str], str]) -> int | Refused | None:
    """Give the finished folder its name, which only one creator can: the lock held on it; None: it was taken.

    The rename onto a name that exists fails. So a folder is not there or whole, whenever its creator dies.
    """
    uid = uuid.uuid4().hex
    draft = Folder(places.root / f".new-{uid}")
    try:
        draft.path.mkdir(mode=0o700)
        (draft.path / "work").mkdir()
        spec = order.pool.spec
        # To disk first: after a power cut an order that cannot be read would block the list of all pods.
        draft.write("order.json", _order_file(order, uid, install), durable=True)
        draft.write("launch.json", Launch(argv, _environment(order, uid, places)))
        if spec.protection.mode == "always":
            draft.write("stamp.json", StampFile(1, None, True))  # protected from its birth on
        if spec.worker.agent:
            draft.write_text("token", token(uid))
        lock = draft.make_lock()
        try:
            os.rename(draft.path, places.root / order.name)
        except OSError:
            os.close(lock)
            raise
    except OSError as error:
        remove_tree(draft.path)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return None
        if error.errno in FULL:
            return Refused("quota", f"no room for a worker's folder: {error.strerror}")
        raise ClusterUnavailable(f"cannot make a worker's folder: {error}") from error
    return lock


def abandoned(facts: Facts) -> bool:
    """Whether the creator died before it started a shim. A mistake is harmless: one shim takes the pod."""
    waiting = facts.shim is None and facts.exit is None and facts.mark is None and facts.order.boot == BOOT
    return waiting and abs(time.time() - facts.order.created_at) > ABANDONED


def start_shim(folder: Folder) -> Refused | None:
    """Start the shim and see it settled, or take the folder away again. The lock must be held."""
    argv = [sys.executable, "-I", "-S", "-X", "utf8", str(SHIM), str(folder.path)]
    try:
        log = os.open(folder.path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            env = msgspec.json.decode((folder.path / "launch.json").read_bytes(), type=Launch).env
            first = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(log)
    except OSError as error:  # no process was made
        folder.remove()
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            return Refused("limit", f"this machine takes no more processes: {error.strerror}")
        raise ClusterUnavailable(f"cannot start a shim: {error}") from error
    try:
        first.wait(START_TIMEOUT)  # it ends as soon as the shim has left it: no zombie stays with us
    except subprocess.TimeoutExpired:
        first.kill()  # our own child, not yet waited for; whether its shim lives shows in the folder
        first.wait()
    return None


def sweep_drafts(root: Path, older_than: float) -> None:
    """Remove what creators and removers that died left half done."""
    for entry in os.scandir(root):
        if entry.name.startswith((".new-", ".gone-")):
            try:
                young = time.time() - entry.stat().st_mtime < older_than
            except FileNotFoundError:
                continue
            if not young:
                remove_tree(Path(entry.path))


def _order_file(order: Order, uid: str, install: str) -> OrderFile:
    return OrderFile(
        worker=order.worker,
        uid=uid,
        install=install,
        pool_id=order.pool.id,
        pool=order.pool.name,
        revision=order.pool.revision,
        epoch=order.epoch,
        created_at=time.time(),
        agent=order.pool.spec.worker.agent,
        boot=BOOT,
    )


def _environment(order: Order, uid: str, places: Places) -> dict[str, str]:
    folder = places.root / order.name
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env.setdefault("PATH", os.defpath)
    if order.pool.spec.worker.agent and "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]  # the agent must be of the same version as the server that starts it
    env |= {"HOLDFAST_WORKER": order.worker, "HOLDFAST_POD_UID": uid, "HOLDFAST_WORKER_DIR": str(folder)}
    env["HOLDFAST_OUTPUT_DIR"] = str(places.output_root)
    if order.pool.spec.worker.agent:  # a user's own program gets no token
        env["HOLDFAST_TOKEN_FILE"] = str(folder / "token")
        env["HOLDFAST_SERVERS_FILE"] = str(places.servers_file)
    return env
