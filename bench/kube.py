"""Protected claims on a real API server, with hollow pods (`make bench-kube`).

The load is an open loop: claims come at random times with a given rate, whether or not earlier claims were answered.
"""

import asyncio
import contextlib
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import aiohttp

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "kubernetes"), str(TESTS.parent / "testcluster")]

from kube_fleet import KubeFleet  # noqa: E402

from holdfast.kubernetes.access import find_access  # noqa: E402
from holdfast.kubernetes.api import Api  # noqa: E402
from holdfast_testcluster.access import Access  # noqa: E402
from holdfast_testcluster.control_plane import ControlPlane  # noqa: E402
from holdfast_testcluster.kubelet_process import KubeletProcess  # noqa: E402

from .figure import Figure  # noqa: E402
from .part import Part  # noqa: E402
from .sizes import Sizes  # noqa: E402
from .spread import Spread  # noqa: E402

LIMITS = {"p50": 0.030, "p90": 0.060, "p99": 0.120}  # seconds at 75/s; a comparable product publishes 0.300, 0.300, 0.500
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ALWAYS_SECONDS, BARE_SECONDS = 0.3, 0.4  # factors of the seconds of the open loop
LABEL = re.compile(r'(\w+)="([^"]*)"')
WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Resources that the cluster's own parts write: nodes and their tokens, scheduler, controllers, leases.
OTHERS = ("leases", "nodes", "events", "endpoints", "endpointslices", "subjectaccessreviews", "tokenreviews")
OF_OTHERS = ("status", "binding", "token")


def pool(warm: int, mode: str) -> dict[str, Any]:
    """Returns a pool of workers without an agent: a claim is active once its pod is protected, which is what is measured."""
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
    """Returns whether the cluster's own parts wrote it, or whether it spawns or ends a pod, which no claim asks for."""
    if labels["resource"] == "pods" and labels["verb"] in ("POST", "DELETE"):
        return True
    return labels["resource"] in OTHERS or labels["subresource"] in OF_OTHERS


class Bench:
    """A fleet on a control plane, and the calls of its holders."""

    def __init__(self, plane: Access, fleet: KubeFleet) -> None:
        self.plane, self.fleet = plane, fleet
        self.protected = 0
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        headers = {"Authorization": f"Bearer {self.fleet.token}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as self._session:
            yield

    async def free(self, name: str, count: int, within: float) -> float:
        """Returns the seconds until so many workers can be given out."""
        began = time.monotonic()
        while True:
            status = (await asyncio.to_thread(self.fleet.api, "GET", f"/v1/pools/{name}")).json["status"]
            if status["free"] >= count:
                return time.monotonic() - began
            if time.monotonic() - began > within:
                raise TimeoutError(f"{status['free']} of {count} workers are free after {within} s: {status['trouble']}")
            await asyncio.sleep(0.2)

    async def claim(self, name: str, n: int) -> tuple[float, str]:
        """Returns the seconds until the answer that the claim is active, and its id. Counts the protected ones."""
        url = f"http://127.0.0.1:{self.fleet.ports[n % len(self.fleet.ports)]}/v1/claims"
        assert self._session is not None
        began = time.perf_counter()
        async with self._session.post(url, json={"pool": name, "wait": "20s"}) as answer:
            claim = await answer.json()
            assert answer.status == 201, claim
            assert claim["state"] == "active", claim
            self.protected += bool(claim["protected"])
            return time.perf_counter() - began, claim["id"]

    async def open_loop(self, name: str, rate: float, seconds: float) -> tuple[Spread, list[str]]:
        return await _open_loop(lambda n: self.claim(name, n), rate, seconds)

    def writes(self) -> float:
        """Returns how many writes the API server has counted, without spawns and ends of pods and without the writes of nodes,
        scheduler and controllers. The rest is the cost of claims.
        """
        text = self.plane.request("GET", "/metrics").body
        lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
        requests = [(dict(LABEL.findall(line)), float(line.rsplit(" ", 1)[1])) for line in lines]
        return sum(count for labels, count in requests if labels["verb"] in WRITES and not _of_others(labels))

    async def bare(self, rate: float, seconds: float, clients: int = 32) -> tuple[float, Spread]:
        """Sends PATCHes of the same shape with the same client. Returns how many per second are possible, and their latencies at
        the rate of the claims."""
        api = Api(find_access(self.plane.kubeconfig))
        names = [pod["metadata"]["name"] for pod in self.fleet.pods()]

        async def patch(n: int) -> tuple[float, str]:
            began, name = time.perf_counter(), names[n % len(names)]
            meta = {"managedFields": [{}], "annotations": {"bench": str(n)}}
            await api.patch(f"{self.fleet.pods_path}/{name}", {"metadata": meta})
            return time.perf_counter() - began, name

        async def one(first: int) -> int:
            end, done = time.perf_counter() + seconds, 0
            while time.perf_counter() < end:
                await patch(first + clients * done)
                done += 1
            return done

        done = sum(await asyncio.gather(*(one(first) for first in range(clients))))
        paced, _ = await _open_loop(patch, rate, seconds)
        await api.close()
        return done / seconds, paced


async def _open_loop(do: Callable[[int], Awaitable[tuple[float, str]]], rate: float, seconds: float) -> tuple[Spread, list[str]]:
    dice, tasks, began = random.Random(1), list[asyncio.Future[tuple[float, str]]](), time.perf_counter()
    at = 0.0
    while (at := at + dice.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        tasks.append(asyncio.ensure_future(do(len(tasks))))
    answers = await asyncio.gather(*tasks)
    return Spread(time.perf_counter() - began, [took for took, _ in answers]), [id_ for _, id_ in answers]


def names(sizes: Sizes) -> list[str]:
    return [
        f"{sizes.kube_workers} workers warm",
        f"protection: always at {sizes.kube_rate}/s, p50",
        *(f"a bare PATCH at {sizes.kube_rate}/s, {name}" for name in SHARES),
        *(f"to protected at {sizes.kube_rate}/s, {name}" for name in SHARES),
        "API writes per claim",
        "workers warm again",
        *(f"to protected in a burst of {sizes.kube_burst}, {name}" for name in SHARES),
        "protected claims in the burst",
        "claims handed over with protection",
    ]


async def figures(bench: Bench, sizes: Sizes) -> AsyncIterator[Figure]:
    title = iter(names(sizes))
    async with bench.connected():
        took = await bench.free("claims", sizes.kube_workers, 600)
        yield Figure(next(title), took, "s", "workers", sizes.kube_workers)
        await bench.free("always", sizes.kube_always, 300)
        always, always_ids = await bench.open_loop("always", sizes.kube_rate, sizes.kube_seconds * ALWAYS_SECONDS)
        yield Figure(next(title), always.p50, "s", "aim", 0.010, 1.0)
        await bench.free("always", sizes.kube_always, 300)
        bare, paced = await bench.bare(sizes.kube_rate, sizes.kube_seconds * BARE_SECONDS)
        before = bench.writes()
        spread, ids = await bench.open_loop("claims", sizes.kube_rate, sizes.kube_seconds)
        writes = (bench.writes() - before) / len(ids)
        for name, share in SHARES.items():
            yield Figure(next(title), paced.percentile(share), "s", "aim for a whole claim", LIMITS[name])
        for name, share in SHARES.items():
            yield Figure(next(title), spread.percentile(share), "s", "aim", LIMITS[name], 1.0)
        yield Figure(next(title), writes, "writes", "aim", 1.0, 1.05)
        refilled = await bench.free("claims", sizes.kube_workers, 300)
        yield Figure(next(title), refilled, "s", "claims before it", len(ids))
        began = time.perf_counter()
        answers = await asyncio.gather(*(bench.claim("claims", n) for n in range(sizes.kube_burst)))
        burst = Spread(time.perf_counter() - began, [took for took, _ in answers])
        for share in SHARES.values():
            yield Figure(next(title), burst.percentile(share), "s", "whole burst", burst.seconds)
        yield Figure(next(title), burst.rate, "1/s", "bare PATCHes with the same client", bare, 0.8, least=True)
        claims = len(always_ids) + len(ids) + sizes.kube_burst
        yield Figure(next(title), bench.protected, "claims", "all claims", claims, 1.0, least=True)


class BenchFleet(KubeFleet):
    """Does not end its workers one by one, because its control plane ends with it."""

    def _end_workers(self) -> None:
        pass


@contextlib.contextmanager
def own_plane(pools: dict[str, dict[str, Any]], nodes: int) -> Iterator[Bench]:
    """Runs a fleet with these pools on a control plane of its own."""
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as folder, ControlPlane(Path(folder) / "plane") as plane:
        plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        with (
            KubeletProcess(plane, Path(folder) / "kubelet", nodes=nodes, hollow=True) as kubelet,
            BenchFleet(plane, "bench", kubelet, pools=pools) as fleet,
        ):
            yield Bench(plane, fleet)


def pools(sizes: Sizes) -> dict[str, dict[str, Any]]:
    return {"claims": pool(sizes.kube_workers, "claim"), "always": pool(sizes.kube_always, "always")}


def staged(sizes: Sizes) -> AbstractContextManager[Bench]:
    return own_plane(pools(sizes), sizes.kube_nodes)


KUBE = Part("kube", staged, figures, names)
