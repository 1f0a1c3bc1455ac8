"""Run pods as processes of this machine that outlive the replica which started them."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from ..model.pod import Pod, Stamp
from ..model.pool import FieldProblem, Pool
from ..ports.cluster import AgentIdentity, ClusterUnavailable, Finding, Order, OutcomeUnknown, Output, Refused
from ..ports.declared import Declarations
from ..ports.recovery import Remembered
from ..proof import Signer
from ..tasks import end_all
from . import launch
from .diagnose import diagnose
from .ending import end
from .folder import Folder, StampFile
from .isolation import no_namespaces, served_processes
from .keeping import HighWater, Tokens
from .launch import AGENT, Places, abandoned, command, reserve, start_shim, sweep_drafts
from .outputs import Outputs
from .survey import MARKER, PLAIN, Survey

T = TypeVar("T")

LOOK = 0.5  # seconds between two scans for changes
SHARE = 20  # scans take at most 1/20 of the time, so that with very many pods they run less often
NOT_SEPARATED = "every command runs as the user of this fleet: it can read the fleet's key, admin token, database and all output"
TRUSTED_ONLY = "give tenants' tokens only to people who may have all of that, or use Kubernetes (docs/security.md)"
DRAFT_AGE = 600.0  # seconds, after which a draft was abandoned, because making or removing a folder takes milliseconds


class LocalCluster:
    """The Cluster port on one machine. Any number of replicas may use the same folders at the same time."""

    declarations: Declarations | None = None
    passes_input = True
    separates_jobs = False  # all of them run as the user of the fleet

    def __init__(
        self,
        root: Path,
        output_root: Path,
        highwater: Path,
        servers_file: Path,
        install: str,
        key: bytes,
        agent_argv: list[str] | None = None,
    ) -> None:
        self.install = install
        for folder in (root, output_root):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Resolve symbolic links, because processes are also found by their working folder, and the kernel shows the real path.
        server_key = Signer(key).public_key
        self._places = Places(root.resolve(), output_root.resolve(), servers_file.absolute(), server_key)
        if not highwater.exists():  # only in a new installation; later a missing marker means that the folder is not mounted
            (self._places.root / MARKER).touch(mode=0o600)
        self._survey = Survey(self._places.root, install)
        self._outputs = Outputs(self._places.output_root)
        self._highwater = HighWater(highwater.absolute())
        self._tokens = Tokens(install, key)
        self._agent_argv = list(agent_argv or AGENT)
        # Separate thread pools, so that a burst of slow starts never delays a protection.
        self._hands = ThreadPoolExecutor(8, "holdfast-local")
        self._starters = ThreadPoolExecutor(4, "holdfast-start")
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def pods(self) -> list[Pod]:
        return await self._do(self._survey.pods)

    async def changes(self) -> AsyncIterator[set[str]]:
        before: dict[str, Pod] | None = None
        while True:
            begun, took = time.monotonic(), 0.0
            with contextlib.suppress(ClusterUnavailable):  # changes are only hints, and the next scan finds them
                now = {pod.name: pod for pod in await self.pods()}
                took = time.monotonic() - begun
                old, before = before if before is not None else now, now
                if changed := {name for name in old.keys() | now.keys() if old.get(name) != now.get(name)}:
                    yield changed
                await self._start_abandoned(now.values())
            await asyncio.sleep(max(LOOK, SHARE * took))

    async def read(self, name: str) -> Pod | None:
        return await self._do(lambda: self._survey.pod(name))

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        found = [(name, await self.read(name)) for name in names]
        return {name: pod for name, pod in found if pod is not None}

    async def create(self, order: Order) -> Pod | Refused:
        if not PLAIN.fullmatch(order.name):
            return Refused("invalid", f"{order.name!r} is not a valid worker name")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._starters, self._create, order)
        except OSError as error:
            raise OutcomeUnknown(f"it is unknown whether {order.name} was started: {error}") from error

    def _create(self, order: Order) -> Pod | Refused:
        self._survey.check_root()
        argv = command(order.pool.spec, self._agent_argv)
        if isinstance(argv, Refused):
            return argv
        if self._survey.facts(order.name) is not None:
            return self._found(order)
        lock = reserve(order, argv, self.install, self._places, lambda uid: self._tokens.issue(order.worker, uid))
        if lock is None:
            return self._found(order)
        if isinstance(lock, Refused):
            return lock
        try:
            refused = start_shim(self._survey.folder(order.name))
        finally:
            os.close(lock)
        return refused or self._there(order.name)

    def _found(self, order: Order) -> Pod | Refused:
        """Returns the pod of an earlier try. Starts its shim if the creator died before it could."""
        facts = self._survey.facts(order.name)
        if facts is not None and facts.order.install != self.install:
            return Refused("other", f"the name {order.name!r} is taken by another installation")
        return self._take_over(order.name) or self._there(order.name)

    def _take_over(self, name: str) -> Refused | None:
        """Starts the shim of a pod if its creator died before it could."""
        facts = self._survey.facts(name)
        if facts is not None and abandoned(facts):
            folder = self._survey.folder(name)
            with contextlib.suppress(FileNotFoundError, ClusterUnavailable), folder.locked(timeout=0):
                facts = self._survey.facts(name)
                if facts is not None and abandoned(facts):
                    return start_shim(folder)
        return None

    async def _start_abandoned(self, pods: Iterable[Pod]) -> None:
        """Starts pods whose creator died. As with a kubelet, an existing pod starts even if `create` is not called again."""
        loop, now = asyncio.get_running_loop(), time.time()
        for name in [pod.name for pod in pods if pod.phase == "pending" and now - pod.created_at > launch.ABANDONED]:
            with contextlib.suppress(OSError):
                await loop.run_in_executor(self._starters, self._take_over, name)

    def _there(self, name: str) -> Pod:
        pod = self._survey.pod(name)
        if pod is None:
            raise OutcomeUnknown(f"{name} existed a moment ago and is gone: it was removed by another process")
        return pod

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        def write() -> Pod | None:
            with self._owned(name, uid) as folder:
                if folder is None:
                    return None
                kept = self._stamp(name)
                again = kept.stamp is not None and (kept.stamp.claim, kept.stamp.fence) == (
                    stamp.claim,
                    stamp.fence,
                )
                at = kept.stamp.at if again and kept.stamp is not None else time.time()
                fresh = msgspec.structs.replace(stamp, at=at)
                folder.write("stamp.json", StampFile(kept.version + 1, fresh, True))
                return self._survey.pod(name)

        return await self._do(write)

    async def clear(self, name: str, uid: str, version: str) -> bool:
        def write() -> bool:
            with self._owned(name, uid) as folder:
                if folder is None or str((kept := self._stamp(name)).version) != version:
                    return False
                folder.write("stamp.json", StampFile(kept.version + 1))
                return True

        return await self._do(write)

    async def delete(self, name: str, uid: str, grace: float) -> None:
        def ask() -> float | None:
            with self._owned(name, uid) as folder:
                facts = self._survey.facts(name) if folder is not None else None
                return None if folder is None or facts is None else end(folder, facts, grace)

        again = await self._do(ask)
        if again is not None and uid not in self._ending:
            # The shim was killed, so this replica has to keep the deadline. If it dies too, the next call finds the entry.
            self._ending[uid] = asyncio.create_task(self._end_later(name, uid, again))

    async def _end_later(self, name: str, uid: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            self._ending.pop(uid, None)
        with contextlib.suppress(ClusterUnavailable):
            await self.delete(name, uid, 0.0)

    async def forget(self, name: str, uid: str) -> None:
        def remove() -> None:
            with self._owned(name, uid) as folder:
                if folder is not None and (pod := self._survey.pod(name)) is not None and pod.phase == "ended":
                    folder.remove()

        await self._do(remove)

    async def output(self, claim: str, worker: str, offset: int, limit: int, reader: str = "") -> Output:
        return await self._do(lambda: self._outputs.read(claim, offset, limit, reader))

    async def output_sizes(self) -> dict[str, int]:
        return await self._do(self._outputs.sizes)

    async def prune_output(self, keep: set[str]) -> int:
        def prune() -> int:
            sweep_drafts(self._places.root, DRAFT_AGE)
            return self._outputs.prune(keep)

        return await self._do(prune)

    async def verify(self, token: str) -> AgentIdentity | None:
        identity = self._tokens.read(token)
        if identity is None:
            return None
        pod = await self.read(identity.worker)
        return identity if pod is not None and pod.uid == identity.uid and pod.phase != "ended" else None

    async def check(self, pool: Pool) -> list[FieldProblem]:
        spec = pool.spec
        found: list[FieldProblem] = []
        if spec.mode == "session" and not spec.worker.serve:
            found.append(FieldProblem("worker.serve", "a session on this machine needs a command that serves $SOCKET or $PORT"))
        if spec.worker.listen == "isolated" and (reason := await self._do(no_namespaces)):
            found.append(FieldProblem("worker.listen", f"isolated is not possible on this machine: {reason}"))
        elsewhere = "only on Kubernetes: here a worker is a process of this machine"
        kubernetes_only = {
            "pod": bool(spec.pod),
            "headroom.mode": spec.headroom.mode == "constant",
            "network.seal": spec.network.seal,
            "network.egress": bool(spec.network.egress),
            "network.ingress": bool(spec.network.ingress),
        }
        found += [FieldProblem(field, elsewhere) for field, is_set in kubernetes_only.items() if is_set]
        argv = command(spec, self._agent_argv)
        if isinstance(argv, Refused):
            found.append(FieldProblem("worker.run", argv.reason))
        return found

    async def diagnose(self, pools: Sequence[Pool]) -> list[Finding]:
        read = Finding("P1", "what a command can read on this machine", True, NOT_SEPARATED, TRUSTED_ONLY)
        files = await self._do(lambda: diagnose(self._places.servers_file.parent))
        return [read, await self._do(lambda: served_processes(pools)), *files]

    async def ensure(self, pools: Sequence[Pool]) -> None:
        """Does nothing, because a process needs no other objects."""

    async def seal(self, name: str, uid: str) -> None:
        """Does nothing, because `check` refuses pools with `network.seal` on one machine."""

    async def remember(self, mark: Remembered) -> None:
        await self._do(lambda: self._highwater.raise_to(mark))

    async def remembered(self) -> Remembered | None:
        return await self._do(self._highwater.read)

    async def close(self) -> None:
        await end_all(list(self._ending.values()))
        self._hands.shutdown(wait=False)
        self._starters.shutdown(wait=False)

    @contextlib.contextmanager
    def _owned(self, name: str, uid: str) -> Iterator[Folder | None]:
        """Yields the locked folder of the pod with this UID, or None if the pod is gone or the name belongs to another pod."""
        self._survey.check_root()
        folder = self._survey.folder(name)
        with contextlib.ExitStack() as held:
            ours = self._is(name, uid)
            if ours:
                try:
                    held.enter_context(folder.locked())
                    ours = self._is(name, uid)  # check again, because the pod may have been removed during the wait
                except FileNotFoundError:
                    ours = False
            yield folder if ours else None

    def _is(self, name: str, uid: str) -> bool:
        facts = self._survey.facts(name) if PLAIN.fullmatch(name) else None
        return facts is not None and (facts.order.install, facts.order.uid) == (self.install, uid)

    def _stamp(self, name: str) -> StampFile:
        facts = self._survey.facts(name)
        return facts.stamp if facts is not None else StampFile()

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._hands, work)
        except OSError as error:  # a full or failing disk; no file is written partly
            raise ClusterUnavailable(str(error)) from error
