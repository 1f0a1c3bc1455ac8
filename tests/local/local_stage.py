"""A stage for pods that are real processes, and the way to end all of them."""

import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from contracts.cluster import FOREVER, until
from holdfast.local import LocalCluster
from holdfast.local.folder import Folder
from holdfast.local.process import Process, Table, alive, kin, look, send
from holdfast.model.pod import Pod
from holdfast.model.pool import Pool, PoolSpec, WorkerSpec, revision_of
from holdfast.ports.cluster import Order
from waiting import Deadline

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
STUBBORN = ["sh", "-c", "trap '' TERM; touch ready; while :; do sleep 0.05; done"]


def pool(worker: WorkerSpec) -> Pool:
    spec = PoolSpec(worker=worker)
    return Pool(
        id="p-1",
        name="linux",
        spec=spec,
        revision=revision_of(spec),
        state="live",
        source="api",
        created_at=0.0,
    )


class LocalStage:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "workers"
        self.output = home / "output"

    def open(self, install: str = "one") -> LocalCluster:
        return LocalCluster(
            self.root,
            self.output,
            self.home / "highwater.json",
            self.home / "servers",
            install,
            b"key",
            agent_argv=FOREVER,
        )

    def order(self, worker: str, argv: list[str] = FOREVER) -> Order:
        return Order(worker=worker, pool=pool(WorkerSpec(run=argv, agent=False)), epoch=3)

    def order_with_agent(self, worker: str) -> Order:
        return Order(worker=worker, pool=pool(WorkerSpec()), epoch=3)

    def token(self, pod: Pod) -> str:
        return (self.root / pod.name / "token").read_text()

    def put_output(self, claim: str, data: bytes, *, truncated: bool = False) -> None:
        names = [claim, f"{claim}.truncated"] if truncated else [claim]
        for name in names:
            (self.output / name).write_bytes(data)
            os.utime(self.output / name, (time.time() - 300, time.time() - 300))

    def end_everything(self) -> None:
        """Ends processes until two reads in a row find none."""
        deadline = Deadline(20)
        quiet = 0
        while quiet < 2:
            assert not deadline.over(), "a process of this test does not end"
            left = self.left()
            quiet = 0 if left else quiet + 1
            for process in left:
                send(process, signal.SIGKILL)
            time.sleep(0.01)

    def left(self) -> list[Process]:
        """Returns every running process of the pods of this stage."""
        table = Table()
        found: list[Process] = []
        for path in self.root.iterdir() if self.root.exists() else ():
            shim, agent = _process(path / "pod.json"), _process(path / "agent.json")
            if shim is not None:
                uid = json.loads((path / "order.json").read_bytes())["uid"]
                found += kin(uid, shim, agent, table, str(path)).sure
        return found


def _process(path: Path) -> Process | None:
    return msgspec.json.decode(path.read_bytes(), type=Process) if path.exists() else None


def shim_of(stage: LocalStage, name: str) -> Process:
    found = Folder(stage.root / name).facts()[0].shim
    assert found is not None
    return found


def agent_of(stage: LocalStage, name: str) -> Process:
    found = Folder(stage.root / name).facts()[0].agent
    assert found is not None
    return found


async def written(path: Path) -> str:
    async def there() -> bool:
        return path.exists() and path.read_text().endswith("\n")

    await until(there, str(path))
    return path.read_text().strip()


async def noted(path: Path) -> Process:
    """Returns the process whose PID a worker wrote into a file."""
    seen = look(int(await written(path)))
    assert seen is not None
    return seen.process


async def dead(process: Process) -> None:
    async def gone() -> bool:
        return not alive(process)

    await until(gone, f"end of {process}")


async def kill(process: Process) -> None:
    assert send(process, signal.SIGKILL)
    await dead(process)


def exists(path: Path) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return path.exists()

    return there
