"""What 5,000 workers cost an idle replica, and how long a fresh list takes (`make bench-kube`)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.informer import PAGE, Informer, ListMeta
from holdfast.kubernetes.names import INSTALL
from holdfast.kubernetes.shapes import PodObject

from .figure import Figure
from .kube import Bench, own_plane, pool
from .part import Part
from .sizes import Sizes


class Page(msgspec.Struct):
    metadata: ListMeta


REPLICAS = 2
CPU_CLOCK = 2  # as in clock_getcpuclockid(3) on Linux


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process by its own clock, because `/proc/PID/stat` counts in steps of 10 ms."""
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)


def memory(pid: int) -> float:
    """Returns the resident memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


async def relist(bench: Bench, workers: int) -> tuple[float, float]:
    """Returns the seconds for a fresh list, and for reading the same pages without decoding them into pods."""
    api = Api(find_access(bench.plane.kubeconfig))
    path, selector = bench.fleet.pods_path, f"{INSTALL}={bench.fleet.install}"
    informer = Informer(api, path, selector, PodObject, lambda _: None)
    took, bare = [], []
    for _ in range(3):
        began = time.perf_counter()
        found, _version = await informer.list()
        took.append(time.perf_counter() - began)
        assert len(found) >= workers, f"the list has only {len(found)}"
        began, params = time.perf_counter(), {"limit": str(PAGE), "labelSelector": selector}
        while more := msgspec.json.decode(await api.get(path, params, timeout=30.0), type=Page).metadata.continue_:
            params["continue"] = more
        bare.append(time.perf_counter() - began)
    await api.close()
    return min(took), min(bare)


def names(sizes: Sizes) -> list[str]:
    per_replica = [_of_replica(kind, n, sizes) for n in range(REPLICAS) for kind in ("CPU of idle", "memory of")]
    return [f"{sizes.scale_workers} workers warm", *per_replica, f"a fresh list of {sizes.scale_workers}"]


def _of_replica(kind: str, n: int, sizes: Sizes) -> str:
    return f"{kind} replica {n}, {sizes.scale_workers} workers"


async def figures(bench: Bench, sizes: Sizes) -> AsyncIterator[Figure]:
    workers, idle = sizes.scale_workers, sizes.scale_idle
    yield Figure(f"{workers} workers warm", await bench.free("many", workers, 900), "s", "workers", workers)
    await asyncio.sleep(idle)  # so that work that is left from the start does not count as idle
    pids = [process.pid for process in bench.fleet.replicas.values()]
    assert len(pids) == REPLICAS
    before = [cpu_seconds(pid) for pid in pids]
    await asyncio.sleep(idle)
    for n, pid in enumerate(pids):
        used = (cpu_seconds(pid) - before[n]) / idle
        yield Figure(_of_replica("CPU of idle", n, sizes), used, "cores", "one core", 1.0)
        yield Figure(_of_replica("memory of", n, sizes), memory(pid), "MiB", "the chart's limit", 1024.0, 0.5)
    took, bare = await relist(bench, workers)
    yield Figure(f"a fresh list of {workers}", took, "s", "its pages, with nothing made of them", bare)


def pools(sizes: Sizes) -> dict[str, dict[str, Any]]:
    return {"many": pool(sizes.scale_workers, "claim")}


def staged(sizes: Sizes) -> AbstractContextManager[Bench]:
    return own_plane(pools(sizes), sizes.scale_nodes)


KUBE_SCALE = Part("kube-scale", staged, figures, names)
