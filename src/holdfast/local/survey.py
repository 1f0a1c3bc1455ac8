"""Say what runs: every pod of this installation from its folder and its processes."""

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
from .folder import TRIES, Exit, Facts, Folder, Stat
from .process import BOOT, NOBODY, Table, alive

MARKER = ".holdfast"  # in the root from its first day on: an empty folder in its place proves nothing
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # never a hidden folder, which are drafts and left-overs
SILENT = "ended without a word: its processes were killed from outside"


class Pass:
    """What one look at all pods shares: the process table, made only if a shim is missing."""

    @cached_property
    def table(self) -> Table:
        return Table()

    @cached_property
    def second_table(self) -> Table:
        """Taken after the first: a process that was just being forked may be missing from one, not both."""
        _ = self.table
        return Table()


class Survey:
    def __init__(self, root: Path, install: str) -> None:
        self.root = root
        self.install = install
        self._node = socket.gethostname()
        self._known: dict[str, tuple[Stat, Facts]] = {}
        self._inode = os.stat(root).st_ino

    def folder(self, name: str) -> Folder:
        return Folder(self.root / name)

    def pods(self) -> list[Pod]:
        """All of them, or ClusterUnavailable: a partial list would read as the death of the rest."""
        with self._opened() as root:
            names = [name for name in os.listdir(root) if PLAIN.fullmatch(name)]
        shared = Pass()
        found = [pod for name in names if (pod := self._pod(name, shared)) is not None]
        for name in self._known.keys() - set(names):
            self._known.pop(name, None)
        return found

    def pod(self, name: str) -> Pod | None:
        """One of them. None is proof, so a root that is not the one we knew must not answer."""
        self.check_root()
        return self._pod(name, Pass(), fresh=True) if PLAIN.fullmatch(name) else None

    def facts(self, name: str, fresh: bool = True) -> Facts | None:
        """What the folder of this name says; None is proof that there is none."""
        folder = self.folder(name)
        for _ in range(TRIES):
            try:
                if not fresh and (known := self._known.get(name)) is not None and folder.stat() == known[0]:
                    return known[1]
                facts, stat = folder.facts()
            except FileNotFoundError:
                if self._is_gone(name):
                    return None
                continue  # it was made just now: look again
            except OSError as error:
                raise ClusterUnavailable(f"cannot read {folder.path}: {error}") from error
            if stat is not None:
                self._known[name] = stat, facts
            return facts
        raise ClusterUnavailable(f"{folder.path} could not be reached, though it is there")

    def check_root(self) -> None:
        with self._opened():
            pass

    def _is_gone(self, name: str) -> bool:
        """A path leads nowhere too while the root is moved away under it, so ask the root itself."""
        with self._opened() as root:
            try:
                os.stat(name, dir_fd=root, follow_symlinks=False)
            except FileNotFoundError:
                return True
        return False

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The root as it was at the start, held by its inode: what is read through it stays one folder's content."""
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
            # The shim is not there. It may have written its last word after we read.
            facts = self.facts(name)
            if facts is None:
                return None
            facts, phase = self._without_shim(name, facts, shared)
        return self._as_pod(facts, phase)

    def _phase(self, facts: Facts) -> Phase | None:
        """None: the shim died, so the rest of the tree has to be looked at."""
        if facts.exit is not None or facts.order.boot != BOOT or facts.shim == NOBODY:
            return "ended"
        if facts.shim is None:
            return "pending"
        if alive(facts.shim):
            return "running" if facts.agent is not None else "pending"
        return None

    def _without_shim(self, name: str, facts: Facts, shared: Pass) -> tuple[Facts, Phase]:
        """Busy is sacred: as long as anything of the pod's tree lives, it runs."""
        if facts.exit is not None or facts.shim is None:
            return facts, self._phase(facts) or "running"
        if facts.agent is not None and alive(facts.agent):
            return facts, "running"
        folder = self.folder(name)
        if folder.kin(facts, shared.table) or folder.kin(facts, shared.second_table):
            return facts, "running"
        # Written down, so that no later owner of one of its pids brings it back to life.
        end = Exit(None, SILENT, time.time())
        with contextlib.suppress(OSError):
            folder.write_once("exit.json", end)
        return self.facts(name) or facts, "ended"

    def _as_pod(self, facts: Facts, phase: Phase) -> Pod:
        order, stamp, end = facts.order, facts.stamp, facts.exit
        code, fence, trouble = None, None, None
        if facts.result is not None:
            code, fence = facts.result.exit_code, facts.result.fence
        elif end is not None and not order.agent:
            code = end.exit_code
            if code is not None and stamp.stamp is not None and stamp.stamp.at <= end.at:
                fence = stamp.stamp.fence
        if end is not None and facts.mark is None and facts.result is None:
            trouble = end.error
            if trouble is None and order.agent and end.exit_code:
                # Never a claim's exit code: a crash of the agent says nothing of the command.
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
            terminating=facts.mark is not None,
            node=self._node,
            stamp=stamp.stamp,
            protected=stamp.protected,
            epoch=order.epoch,
            exit_code=code,
            exit_fence=fence,
            trouble=trouble,
        )
