"""`make bench-kube`, second part: what 5,000 workers cost a replica that has nothing to do, and how long a fresh list takes."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from holdfast.kubernetes import names
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.informer import PAGE, Informer, ListMeta
from holdfast.kubernetes.shapes import PodObject

from .figure import Figure
from .kube import NAMESPACE, Bench, pool, run


class Page(msgspec.Struct):
    metadata: ListMeta


WORKERS, NODES, IDLE = 5000, 250, 30.0


def cpu_seconds(pid: int) -> float:
    """Of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """MiB that it has resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


async def relist(bench: Bench) -> tuple[float, float]:
    """Seconds until a fresh list is known; and until its pages are here, with nothing made of them."""
    api = Api(find_access(bench.plane.kubeconfig))
    path, selector = f"/api/v1/namespaces/{NAMESPACE}/pods", f"{names.INSTALL}={bench.fleet.install}"
    informer = Informer(api, path, selector, PodObject, lambda _: None)
    took, bare = [], []
    for _ in range(3):
        began = time.perf_counter()
        found, _version = await informer.list()
        took.append(time.perf_counter() - began)
        assert len(found) >= WORKERS, f"the list has only {len(found)}"
        began, params = time.perf_counter(), {"limit": str(PAGE), "labelSelector": selector}
        while more := msgspec.json.decode(await api.get(path, params, timeout=30.0), type=Page).metadata.continue_:
            params["continue"] = more
        bare.append(time.perf_counter() - began)
    await api.close()
    return min(took), min(bare)


async def figures(bench: Bench) -> AsyncIterator[Figure]:
    yield Figure(f"{WORKERS} workers warm", await bench.free("many", WORKERS, 900), "s", "workers", WORKERS)
    await asyncio.sleep(IDLE)  # what their start left to do is done
    pids = [process.pid for process in bench.fleet.replicas.values()]
    before = [cpu_seconds(pid) for pid in pids]
    await asyncio.sleep(IDLE)
    for n, pid in enumerate(pids):
        used = (cpu_seconds(pid) - before[n]) / IDLE
        yield Figure(f"CPU of idle replica {n}, {WORKERS} workers", used, "cores", "one core", 1.0)
        yield Figure(f"memory of replica {n}, {WORKERS} workers", memory(pid), "MiB", "the chart's limit", 1024.0, 0.5)
    took, bare = await relist(bench)
    yield Figure(f"a fresh list of {WORKERS}", took, "s", "its pages, with nothing made of them", bare)


if __name__ == "__main__":
    sys.exit(run({"many": pool(WORKERS, "claim")}, NODES, figures))
