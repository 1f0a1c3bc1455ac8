"""Find the pods of this installation, from their folders and their processes."""

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ..model.pod import Phase, Pod
from ..ports.cluster import ClusterUnavailable
from .folder import TRIES, Exit, Folder, PodFiles, Stat
from .process import BOOT, NO_SHIM, Table, alive

MARKER = ".holdfast"  # in the root of every installation; without it the root is another folder, and its emptiness proves nothing
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # hidden folders are drafts and left-overs
SILENT = "ended without an exit code: its processes were killed from outside"


class Pass:
    """The process table that one scan of all pods shares. It is read only if a shim is missing."""

    @cached_property
    def table(self) -> Table:
        return Table()

    @cached_property
    def second_table(self) -> Table:
        """Returns a table that was read after the first one. A process that is just being forked may be missing in one table, but
        not in both."""
        _ = self.table
        return Table()


class Survey:
    def __init__(self, root: Path, install: str) -> None:
        self.root = root
        self.install = install
        self._node = socket.gethostname()
        self._known: dict[str, tuple[Stat, PodFiles]] = {}
        self._inode = os.stat(root).st_ino

    def folder(self, name: str) -> Folder:
        return Folder(self.root / name)

    def pods(self) -> list[Pod]:
        """Returns all pods, or raises ClusterUnavailable, because pods missing from a partial list would count as dead."""
        with self._opened() as root:
            names = [name for name in os.listdir(root) if PLAIN.fullmatch(name)]
        shared = Pass()
        found = [pod for name in names if (pod := self._pod(name, shared)) is not None]
        for name in self._known.keys() - set(names):
            self._known.pop(name, None)
        return found

    def pod(self, name: str) -> Pod | None:
        """Returns one pod. None proves that it does not exist, so this raises ClusterUnavailable if the root was replaced."""
        self.check_root()
        return self._pod(name, Pass(), fresh=True) if PLAIN.fullmatch(name) else None

    def facts(self, name: str, fresh: bool = True) -> PodFiles | None:
        """Returns the content of this folder. None proves that the folder does not exist."""
        folder = self.folder(name)
        for _ in range(TRIES):
            try:
                if not fresh and (known := self._known.get(name)) is not None and folder.stat() == known[0]:
                    return known[1]
                facts, stat = folder.facts()
            except FileNotFoundError:
                if self._is_gone(name):
                    return None
                continue  # it was created just now: read it again
            except OSError as error:
                raise ClusterUnavailable(f"cannot read {folder.path}: {error}") from error
            if stat is not None:
                self._known[name] = stat, facts
            return facts
        raise ClusterUnavailable(f"{folder.path} exists but could not be read")

    def check_root(self) -> None:
        """Raises ClusterUnavailable if the root is not the folder of the start."""
        with self._opened():
            pass

    def _is_gone(self, name: str) -> bool:
        """Returns whether the folder is gone, looked up in the opened root, because a path also fails if the root was moved."""
        with self._opened() as root:
            try:
                os.stat(name, dir_fd=root, follow_symlinks=False)
            except FileNotFoundError:
                return True
        return False

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Yields a descriptor of the root, after a check that it is the same folder as at the start."""
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ClusterUnavailable(f"cannot look at {self.root}: {error}") from error
        try:
            if os.fstat(fd).st_ino != self._inode:
                raise ClusterUnavailable(f"{self.root} is another folder than at the start: unmounted, or replaced")
            try:
                os.stat(MARKER, dir_fd=fd)
            except FileNotFoundError:
                raise ClusterUnavailable(f"{self.root} is not the folder of this installation's workers: not mounted?") from None
            yield fd
        except OSError as error:
            raise ClusterUnavailable(f"cannot read {self.root}: {error}") from error
        finally:
            os.close(fd)

    def _pod(self, name: str, shared: Pass, fresh: bool = False) -> Pod | None:
        facts = self.facts(name, fresh)
        if facts is None or facts.order.install != self.install:
            return None
        phase = self._phase(facts)
        if phase is None:
            # The shim is gone. It may have written exit.json after the first read, so read the folder again.
            facts = self.facts(name)
            if facts is None:
                return None
            facts, phase = self._without_shim(name, facts, shared)
        return self._as_pod(facts, phase)

    def _phase(self, facts: PodFiles) -> Phase | None:
        """Returns the phase, or None if the shim died, so that the other processes of the pod have to be checked."""
        if facts.exit is not None or facts.order.boot != BOOT or facts.shim == NO_SHIM:
            return "ended"
        if facts.shim is None:
            return "pending"
        if alive(facts.shim):
            return "running" if facts.agent is not None else "pending"
        return None

    def _without_shim(self, name: str, facts: PodFiles, shared: Pass) -> tuple[PodFiles, Phase]:
        """Returns the phase of a pod whose shim died. The pod runs as long as any of its processes may be alive (P2)."""
        if facts.exit is not None or facts.shim is None:
            return facts, self._phase(facts) or "running"
        if facts.agent is not None and alive(facts.agent):
            return facts, "running"
        folder = self.folder(name)
        if folder.kin(facts, shared.table) or folder.kin(facts, shared.second_table):
            return facts, "running"
        # Stored, because otherwise a later process with one of its pids could make the pod look alive again.
        end = Exit(None, SILENT, time.time())
        with contextlib.suppress(OSError):
            folder.write_once("exit.json", end)
        return self.facts(name) or facts, "ended"

    def _as_pod(self, facts: PodFiles, phase: Phase) -> Pod:
        order, stamp, end = facts.order, facts.stamp, facts.exit
        code, fence, trouble = None, None, None
        if facts.result is not None:
            code, fence = facts.result.exit_code, facts.result.fence
        elif end is not None and not order.agent:
            code = end.exit_code
            if code is not None and stamp.stamp is not None and stamp.stamp.at <= end.at:
                fence = stamp.stamp.fence
        if end is not None and facts.termination is None and facts.result is None:
            trouble = end.error
            if trouble is None and order.agent and end.exit_code:
                # Not a claim's exit code, because a crash of the agent does not show how the command ended.
                trouble = f"the agent exited with {end.exit_code}"
        return Pod(
            name=order.worker,
            uid=order.uid,
            worker=order.worker,
            install=order.install,
            pool_id=order.pool_id,
            pool=order.pool,
            revision=order.revision,
            phase=phase,
            version=str(stamp.version),
            created_at=order.created_at,
            ready=phase == "running" and not order.agent,
            terminating=facts.termination is not None,
            node=self._node,
            stamp=stamp.stamp,
            protected=stamp.protected,
            epoch=order.epoch,
            exit_code=code,
            exit_fence=fence,
            trouble=trouble,
        )
