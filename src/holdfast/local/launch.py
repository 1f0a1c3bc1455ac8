"""Start a pod: decide its command, create its folder under its name in one step, and start its shim."""

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
from .folder import Folder, Launch, OrderFile, PodFiles, StampFile, remove_tree
from .process import BOOT

SHIM = Path(__file__).with_name("shim.py")
START_TIMEOUT = 10.0  # seconds; a shim needs 0.05 s, but much more on a machine that swaps
ABANDONED = 2.0  # seconds without a shim, after which the creator is assumed to be dead
PASSED_ON = ("PATH", "HOME", "LANG")  # nothing else, because the server's environment contains its secrets
FULL = {errno.ENOSPC, errno.EDQUOT}
# With -P the agent does not import files that a command left in the agent's working folder.
AGENT = [sys.executable, "-P", "-m", "holdfast.agent"]


class Places(msgspec.Struct, frozen=True):
    root: Path
    output_root: Path
    servers_file: Path
    server_key: str  # public; agents check with it that a server belongs to this installation


def command(spec: PoolSpec, agent_argv: list[str]) -> list[str] | Refused:
    """Returns the command that a pod of this pool runs."""
    if spec.worker.agent:
        return agent_argv
    argv = spec.worker.serve or spec.worker.run
    if not argv:
        return Refused("invalid", "worker.run is empty: without an agent no other setting names the command")
    if any("\0" in argument for argument in argv):
        return Refused("invalid", "worker.run holds a NUL character")
    if shutil.which(argv[0]) is None:
        return Refused("invalid", f"worker.run: {argv[0]!r} is not a program on this machine")
    return list(argv)


def reserve(order: Order, argv: list[str], install: str, places: Places, token: Callable[[str], str]) -> int | Refused | None:
    """Creates the pod's folder. Returns its lock, which is held, or None if the name exists already.

    The folder is complete before it is renamed to its final name, so a creator that dies never leaves a partial folder. The
    rename fails if the name exists, so only one creator can succeed.
    """
    uid = uuid.uuid4().hex
    draft = Folder(places.root / f".new-{uid}")
    try:
        draft.path.mkdir(mode=0o700)
        (draft.path / "work").mkdir()
        spec = order.pool.spec
        # Synced to disk, because after a power cut an unreadable order would make the list of all pods fail.
        draft.write("order.json", _order_file(order, uid, install), durable=True)
        draft.write("launch.json", Launch(argv, _environment(order, uid, places)))
        if spec.protection.mode == "always":
            draft.write("stamp.json", StampFile(1, None, True))  # protected from the start
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


def abandoned(facts: PodFiles) -> bool:
    """Returns whether the creator died before it started a shim. A wrong guess is harmless: only one shim takes the pod."""
    waiting = facts.shim is None and facts.exit is None and facts.termination is None and facts.order.boot == BOOT
    return waiting and abs(time.time() - facts.order.created_at) > ABANDONED


def start_shim(folder: Folder) -> Refused | None:
    """Starts the shim and waits until it has written pod.json. Removes the folder if no process can be
    started. The lock must be held."""
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
    except OSError as error:  # no process was started
        folder.remove()
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            return Refused("limit", f"this machine cannot start more processes: {error.strerror}")
        raise ClusterUnavailable(f"cannot start a shim: {error}") from error
    try:
        first.wait(START_TIMEOUT)  # the first process ends as soon as the shim is on its own, and is reaped here
    except subprocess.TimeoutExpired:
        first.kill()  # safe, because the child is not reaped yet; the folder shows whether its shim lives
        first.wait()
    return None


def sweep_drafts(root: Path, older_than: float) -> None:
    """Removes incomplete folders of replicas that died while they created or removed a pod."""
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
    if order.pool.spec.worker.agent:  # a program without an agent gets no token
        env["HOLDFAST_TOKEN_FILE"] = str(folder / "token")
        env["HOLDFAST_SERVERS_FILE"] = str(places.servers_file)
        env["HOLDFAST_SERVER_KEY"] = places.server_key
    return env
