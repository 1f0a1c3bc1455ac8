"""A cluster whose pods are hollow: each is an entry in memory and an agent in another process (`bench.agents`)."""

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from holdfast.local.keeping import Tokens
from holdfast.model.pod import Pod, Stamp
from holdfast.model.pool import FieldProblem, Pool
from holdfast.ports.cluster import AgentIdentity, Finding, Order, Output, Refused
from holdfast.ports.declared import Declarations
from holdfast.ports.recovery import Remembered


class HollowPods:
    """The Cluster port. Spawning, protecting and ending a pod cost nothing here, so that only Holdfast's own work is measured."""

    declarations: Declarations | None = None
    passes_input = False  # hollow agents run no command
    separates_jobs = True
    shared = True  # only older checkouts read this

    def __init__(self, install: str, key: bytes, port: int, job_seconds: float) -> None:
        self.install = install
        self._tokens = Tokens(install, key)
        self._pods: dict[str, Pod] = {}
        self._names: dict[str, str] = {}  # by UID
        self._changed: set[str] = set()
        self._news = asyncio.Event()
        self._mark: Remembered | None = None
        self._agents = subprocess.Popen(
            [sys.executable, "-m", "bench.agents", str(port), str(job_seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        ends = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ends), self._agents.stdout)
        while line := await ends.readline():
            name = self._names.pop(json.loads(line)["ended"], None)
            if name is not None:
                self._change(name, phase="ended")
                self._changed.add(name)
                self._news.set()

    def _send(self, order: dict[str, Any]) -> None:
        assert self._agents.stdin is not None
        self._agents.stdin.write(json.dumps(order).encode() + b"\n")
        self._agents.stdin.flush()

    def _change(self, name: str, **fields: Any) -> Pod:
        pod = self._pods[name]
        pod = self._pods[name] = msgspec.structs.replace(pod, version=str(int(pod.version) + 1), **fields)
        return pod

    def _find(self, name: str, uid: str) -> Pod | None:
        pod = self._pods.get(name)
        return pod if pod is not None and pod.uid == uid else None

    async def pods(self) -> list[Pod]:
        return list(self._pods.values())

    async def changes(self) -> AsyncIterator[set[str]]:
        while True:
            await self._news.wait()
            self._news.clear()
            changed, self._changed = self._changed, set()
            yield changed

    async def read(self, name: str) -> Pod | None:
        return self._pods.get(name)

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        return {name: self._pods[name] for name in names if name in self._pods}

    async def create(self, order: Order) -> Pod | Refused:
        if order.name in self._pods:
            return self._pods[order.name]
        uid = uuid.uuid4().hex
        pod = Pod(
            name=order.name,
            uid=uid,
            worker=order.worker,
            install=self.install,
            pool_id=order.pool.id,
            pool=order.pool.name,
            revision=order.pool.revision,
            phase="running",
            version="1",
            created_at=time.time(),
            node="hollow",
            epoch=order.epoch,
        )
        self._pods[order.name], self._names[uid] = pod, order.name
        self._send({"start": [order.worker, uid, self._tokens.issue(order.worker, uid)]})
        return pod

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        if self._find(name, uid) is None:
            return None
        return self._change(name, stamp=msgspec.structs.replace(stamp, at=time.time()), protected=True)

    async def clear(self, name: str, uid: str, version: str) -> bool:
        pod = self._find(name, uid)
        if pod is None or pod.version != version:
            return False
        self._change(name, stamp=None, protected=False)
        return True

    async def delete(self, name: str, uid: str, grace: float) -> None:
        pod = self._find(name, uid)
        if pod is not None and not pod.terminating and pod.phase != "ended":
            self._change(name, terminating=True)
            self._send({"stop": uid})

    async def forget(self, name: str, uid: str) -> None:
        pod = self._find(name, uid)
        if pod is not None and pod.phase == "ended":
            del self._pods[name]

    async def output(self, claim: str, worker: str, offset: int, limit: int) -> Output:
        return Output(b"", offset, 0)

    async def output_sizes(self) -> dict[str, int]:
        return {}

    async def prune_output(self, keep: set[str]) -> int:
        return 0

    async def verify(self, token: str) -> AgentIdentity | None:
        identity = self._tokens.read(token)
        pod = self._find(identity.worker, identity.uid) if identity is not None else None
        return identity if pod is not None and pod.phase != "ended" else None

    async def check(self, pool: Pool) -> list[FieldProblem]:
        return []

    async def diagnose(self, pools: Sequence[Pool]) -> list[Finding]:
        return []

    async def ensure(self, pools: Sequence[Pool]) -> None:
        """Does nothing, because hollow pods have no other objects."""

    async def seal(self, name: str, uid: str) -> None:
        """Does nothing, because a hollow pod has no network."""

    async def remember(self, mark: Remembered) -> None:
        self._mark = mark

    async def remembered(self) -> Remembered | None:
        return self._mark

    async def close(self) -> None:
        """Ends the agents: their process leaves when its standard input is closed."""
        self._listening.cancel()
        assert self._agents.stdin is not None
        self._agents.stdin.close()
        await asyncio.to_thread(self._agents.wait, 10)
