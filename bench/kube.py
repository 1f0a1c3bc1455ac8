"""`make bench-kube`: protected claims on a real API server, with hollow pods: one JSON line a figure.

An open loop: claims come by chance at a rate, whether or not earlier ones were answered, as from many callers.
"""

import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "kubernetes"), str(TESTS.parent / "testcluster")]

from kube_fleet import KubeFleet  # noqa: E402

from holdfast.kubernetes.access import find_access  # noqa: E402
from holdfast.kubernetes.api import Api  # noqa: E402
from holdfast_testcluster.control_plane import ControlPlane  # noqa: E402
from holdfast_testcluster.kubelet_process import KubeletProcess  # noqa: E402

from .figure import Figure  # noqa: E402
from .spread import Spread  # noqa: E402

WORKERS, NODES, RATE, SECONDS, BURST = 1050, 100, 75, 10, 300
LIMITS = {"p50": 0.030, "p90": 0.060, "p99": 0.120}  # seconds at 75/s; a peer's published gate: 0.300, 0.300, 0.500
NAMESPACE = "bench"
LABEL = re.compile(r'(\w+)="([^"]*)"')
WRITES = ("POST", "PUT", "PATCH", "DELETE")
# What the cluster's own parts write: nodes and their tokens, scheduler, controllers, leases of all.
OTHERS = ("leases", "nodes", "events", "endpoints", "endpointslices", "subjectaccessreviews", "tokenreviews")
OF_OTHERS = ("status", "binding", "token")
Figures = Callable[["Bench"], AsyncIterator[Figure]]


def pool(warm: int, mode: str) -> dict[str, Any]:
    """Workers without an agent: a claim is active once its pod is protected, which is what is measured."""
    container = {"name": "work", "image": "work:bench", "command": ["sleep", "infinity"]}
    return {
        "mode": "job",
        "warm": warm,
        "max": warm + 800,
        "worker": {"agent": False},
        "protection": {"mode": mode},
        "claim": {"maxDuration": "1h"},
        "pod": {"spec": {"containers": [container]}},
    }


def _of_others(labels: dict[str, str]) -> bool:
    """Also spawns and ends of pods: they come with the pool's size, not with a claim."""
    if labels["resource"] == "pods" and labels["verb"] in ("POST", "DELETE"):
        return True
    return labels["resource"] in OTHERS or labels["subresource"] in OF_OTHERS


class Bench:
    def __init__(self, plane: ControlPlane, fleet: KubeFleet, session: aiohttp.ClientSession) -> None:
        self.plane, self.fleet, self._session = plane, fleet, session
        self.unprotected = 0

    async def free(self, name: str, count: int, within: float) -> float:
        """Seconds until so many can be given out."""
        began = time.monotonic()
        while True:
            status = (await asyncio.to_thread(self.fleet.api, "GET", f"/v1/pools/{name}")).json["status"]
            if status["free"] >= count:
                return time.monotonic() - began
            if time.monotonic() - began > within:
                raise TimeoutError(f"{status['free']} of {count} workers are free after {within} s: {status['trouble']}")
            await asyncio.sleep(0.2)

    async def claim(self, name: str, n: int) -> tuple[float, str]:
        """Until the answer says that it is active; whether it is protected is counted."""
        url = f"http://127.0.0.1:{self.fleet.ports[n % len(self.fleet.ports)]}/v1/claims"
        began = time.perf_counter()
        async with self._session.post(url, json={"pool": name, "wait": "20s"}) as answer:
            said = await answer.json()
            assert answer.status == 201, said
            assert said["state"] == "active", said
            self.unprotected += not said["protected"]
            return time.perf_counter() - began, said["id"]

    async def open_loop(self, name: str, rate: float, seconds: float) -> tuple[Spread, list[str]]:
        return await _open_loop(lambda n: self.claim(name, n), rate, seconds)

    def writes(self) -> float:
        """Everything that was written, by the API server's own count, but for spawns and ends of pods and what nodes, scheduler
        and controllers write: what a claim costs it."""
        text = self.plane.request("GET", "/metrics").body
        lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
        asked = [(dict(LABEL.findall(line)), float(line.rsplit(" ", 1)[1])) for line in lines]
        return sum(count for labels, count in asked if labels["verb"] in WRITES and not _of_others(labels))

    async def bare(self, seconds: float = 4.0, clients: int = 32) -> tuple[float, Spread]:
        """PATCHes of the same shape with the same client, and nothing else to do: as many a second as go, and at our rate."""
        api = Api(find_access(self.plane.kubeconfig))
        names = [pod["metadata"]["name"] for pod in self.fleet.pods()]

        async def patch(n: int) -> tuple[float, str]:
            began, name = time.perf_counter(), names[n % len(names)]
            meta = {"managedFields": [{}], "annotations": {"bench": str(n)}}
            await api.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"metadata": meta})
            return time.perf_counter() - began, name

        async def one(first: int) -> int:
            end, done = time.perf_counter() + seconds, 0
            while time.perf_counter() < end:
                await patch(first + clients * done)
                done += 1
            return done

        done = sum(await asyncio.gather(*(one(first) for first in range(clients))))
        paced, _ = await _open_loop(patch, RATE, seconds)
        await api.close()
        return done / seconds, paced


async def _open_loop(do: Callable[[int], Awaitable[tuple[float, str]]], rate: float, seconds: float) -> tuple[Spread, list[str]]:
    dice, tasks, began = random.Random(1), list[asyncio.Future[tuple[float, str]]](), time.perf_counter()
    at = 0.0
    while (at := at + dice.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        tasks.append(asyncio.ensure_future(do(len(tasks))))
    told = await asyncio.gather(*tasks)
    return Spread(time.perf_counter() - began, [took for took, _ in told]), [id_ for _, id_ in told]


async def figures(bench: Bench) -> AsyncIterator[Figure]:
    took = await bench.free("claims", WORKERS, 600)
    yield Figure(f"{WORKERS} workers warm", took, "s", "workers", WORKERS)
    await bench.free("always", 300, 300)
    always, _ = await bench.open_loop("always", RATE, 3)
    yield Figure(f"protection: always at {RATE}/s, p50", always.p50, "s", "aim", 0.010, 1.0)
    await bench.free("always", 300, 300)
    bare, paced = await bench.bare()
    before = bench.writes()
    spread, ids = await bench.open_loop("claims", RATE, SECONDS)
    writes = (bench.writes() - before) / len(ids)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        yield Figure(f"a bare PATCH at {RATE}/s, {name}", paced.percentile(share), "s", "aim for a whole claim", LIMITS[name])
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        yield Figure(f"to protected at {RATE}/s, {name}", spread.percentile(share), "s", "aim", LIMITS[name], 1.0)
    yield Figure("API writes a claim", writes, "writes", "aim", 1.0, 1.05)
    yield Figure("refilled after it", await bench.free("claims", WORKERS, 300), "s", "claims", len(ids))
    began = time.perf_counter()
    told = await asyncio.gather(*(bench.claim("claims", n) for n in range(BURST)))
    burst = Spread(time.perf_counter() - began, [took for took, _ in told])
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        yield Figure(f"to protected in a burst of {BURST}, {name}", burst.percentile(share), "s", "whole burst", burst.seconds)
    yield Figure("protected claims in the burst", burst.rate, "1/s", "bare PATCHes with the same client", bare, 0.8, least=True)
    yield Figure("handed over unprotected", bench.unprotected, "claims", "all claims", len(ids) + BURST, 0.0)


class BenchFleet(KubeFleet):
    """Its control plane goes with it: thousands of workers need not be ended one by one before."""

    def _end_workers(self) -> None:
        pass


async def measured(plane: ControlPlane, fleet: KubeFleet, figures: Figures) -> int:
    missed = 0
    headers = {"Authorization": f"Bearer {fleet.token}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        async for figure in figures(Bench(plane, fleet, session)):
            print(figure.line(), flush=True)
            missed += figure.ok is False
    return min(missed, 1)


def run(pools: dict[str, dict[str, Any]], nodes: int, figures: Figures) -> int:
    """These figures of a fleet with these pools on a control plane of their own."""
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as folder, ControlPlane(Path(folder) / "plane") as plane:
        plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        with (
            KubeletProcess(plane, Path(folder) / "kubelet", nodes=nodes, hollow=True) as kubelet,
            BenchFleet(plane, NAMESPACE, kubelet, pools=pools) as fleet,
        ):
            return asyncio.run(measured(plane, fleet, figures))


if __name__ == "__main__":
    sys.exit(run({"claims": pool(WORKERS, "claim"), "always": pool(300, "always")}, NODES, figures))
