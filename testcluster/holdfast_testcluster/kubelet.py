"""A small kubelet for tests. It registers nodes and runs the pods bound to them as local processes, or pretends to (`--hollow`).

    python -m holdfast_testcluster.kubelet --kubeconfig K --folder F --nodes 3 [--images images.json] [--namespace N] [--hollow]

SIGTERM stops it cleanly: it kills its containers and deletes its pods and nodes. SIGKILL acts like a crash of a node: the
containers die too, and the objects stay. Tests use it through `holdfast_testcluster.kubelet_process.KubeletProcess`.
It does not support networks, resource limits, users, exec, lifecycle hooks and events.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_testcluster import keys
from holdfast_testcluster.api import UNREACHABLE, Api, Object
from holdfast_testcluster.binaries import version
from holdfast_testcluster.container import Container
from holdfast_testcluster.hollow import HollowPods
from holdfast_testcluster.images import Images
from holdfast_testcluster.logs import LogServer
from holdfast_testcluster.node import Nodes, NodeShape
from holdfast_testcluster.reflector import PodReflector
from holdfast_testcluster.runtime import PodRun

log = logging.getLogger("kubelet")
HOLLOW_AT_ONCE = 16  # requests at the same time
READY = "ready"  # the log line that shows that the kubelet now runs pods


@dataclass(frozen=True)
class Settings:
    kubeconfig: Path
    folder: Path
    names: list[str]
    shape: NodeShape = field(default_factory=NodeShape)
    images: Path | None = None
    hollow: bool = False
    hollow_delay: float = 0.1  # seconds from bound to running
    service_env: bool = False  # whether containers get the address of the API server in their environment, as from a real kubelet


class Kubelet:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._addresses = addresses()
        self._images = Images(settings.images)
        self._runs: dict[str, PodRun] = {}  # by UID
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hollow: HollowPods | None = None

    async def run(self, until: asyncio.Event) -> None:
        settings = self._settings
        settings.folder.mkdir(parents=True, exist_ok=True)
        async with Api(settings.kubeconfig) as self._api:
            logs = LogServer(self._find)
            keys.make_authority(settings.folder)
            await logs.start(settings.folder / "ca.crt", settings.folder / "ca.key")
            nodes = Nodes(self._api, settings.names, settings.shape, logs.port, f"v{version()}")
            await nodes.register()
            if settings.hollow:
                self._hollow = HollowPods(self._api, lambda: next(self._addresses), HOLLOW_AT_ONCE, settings.hollow_delay)
            reflector = PodReflector(self._api, settings.shape.namespace, self._seen, self._gone)
            background: list[asyncio.Task[Any]] = [asyncio.create_task(reflector.run()), asyncio.create_task(nodes.heartbeat())]
            await reflector.synced.wait()
            log.info(READY)
            stop: asyncio.Task[Any] = asyncio.create_task(until.wait())
            ended, _ = await asyncio.wait([stop, *background], return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                task.cancel()
            with contextlib.suppress(*UNREACHABLE):  # if the API server is gone, there is nothing to clean up
                await self._tidy_up(nodes)
            await logs.stop()
            for task in ended:
                await task  # so that a bug of the kubelet is reported

    # Pods

    def _seen(self, pod: Object) -> None:
        if pod["spec"].get("nodeName") not in self._settings.names:
            return
        if self._hollow:
            self._hollow.seen(pod)
            return
        uid = pod["metadata"]["uid"]
        if uid not in self._runs:
            self._begin(uid, pod)
        self._runs[uid].seen(pod)

    def _begin(self, uid: str, pod: Object) -> None:
        env = self._service_env() if self._settings.service_env else {}
        # a pod keeps the address from before a restart of the kubelet
        address = pod.get("status", {}).get("podIP") or next(self._addresses)
        run = PodRun(pod, self._api, self._images, address, self._settings.folder, env)
        task = asyncio.create_task(run.main())
        self._runs[uid], self._tasks[uid] = run, task

        def over(task: "asyncio.Task[None]") -> None:
            self._runs.pop(uid, None)
            self._tasks.pop(uid, None)
            if not task.cancelled() and (error := task.exception()):
                log.error("pod %s", pod["metadata"]["name"], exc_info=error)

        task.add_done_callback(over)

    def _gone(self, pod: Object) -> None:
        if self._hollow:
            self._hollow.gone(pod)
        elif run := self._runs.get(pod["metadata"]["uid"]):
            run.gone()

    async def _tidy_up(self, nodes: Nodes) -> None:
        if self._hollow:
            await self._hollow.stop()
        for run in self._runs.values():
            run.gone()  # kills its processes
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if namespace := self._settings.shape.namespace:
            await self._api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
        await nodes.remove()  # the pod garbage collector then deletes the pods of other namespaces, because they have no node

    # Helpers

    def _find(self, namespace: str, pod: str, container: str) -> Container | None:
        for run in reversed(self._runs.values()):  # of two pods with the same name, the younger comes first
            meta = run.pod["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, pod):
                return next((each for each in run.containers if each.record.name == container), None)
        return None

    def _service_env(self) -> dict[str, str]:
        host, port = self._api.url.removeprefix("https://").split(":")
        return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port}


def addresses() -> Iterator[str]:
    """Yields loopback addresses for pods. The start is random, so that two kubelets hardly ever use the same address."""
    number = random.SystemRandom().randrange(1 << 16, 1 << 24)
    while True:
        number = number + 1 if number < (1 << 24) - 2 else 1 << 16  # 127.0.x.y is not used
        if number & 0xFF not in (0, 0xFF):
            yield f"127.{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"


async def _main(settings: Settings) -> None:
    until = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, until.set)
    await Kubelet(settings).run(until)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m holdfast_testcluster.kubelet", description="A small kubelet for tests.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for volumes, logs, certificates")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--prefix", default="node", help="of the nodes' names")
    parser.add_argument("--namespace", help="serve this namespace only, on nodes that no other pods are scheduled to")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="on every node")
    parser.add_argument("--capacity", action="append", default=[], metavar="RESOURCE=QUANTITY", help="of every node")
    parser.add_argument("--images", type=Path, help='JSON: {"run": {image: argv}, "pull_seconds": {image: seconds}}')
    parser.add_argument("--service-env", action="store_true", help="set KUBERNETES_SERVICE_HOST and _PORT in containers")
    parser.add_argument("--hollow", action="store_true", help="run no processes: pods are only reported as running")
    parser.add_argument("--hollow-delay", type=float, default=0.1, help="seconds from bound to running")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    capacity = NodeShape().capacity | dict(each.split("=", 1) for each in args.capacity)
    labels = dict(each.split("=", 1) for each in args.label)
    shape = NodeShape(capacity, labels, args.namespace, heartbeat=60.0 if args.hollow else 10.0)
    names = [f"{args.prefix}-{number}" for number in range(1, args.nodes + 1)]
    options = {"images": args.images, "hollow": args.hollow, "hollow_delay": args.hollow_delay, "service_env": args.service_env}
    asyncio.run(_main(Settings(args.kubeconfig, args.folder, names, shape=shape, **options)))


if __name__ == "__main__":
    main()
