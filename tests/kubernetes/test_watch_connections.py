"""Watches have their own connections, so that no other call waits behind them."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from flaky_api import FlakyApi
from kube_stage import FollowingStage, KubeStage

from contracts.cluster import running
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.model.pod import Stamp
from holdfast_testcluster.access import Access
from waiting import sooner

NODES = "/api/v1/nodes"
AT_ONCE = 64  # connections that one kind of call may open


@pytest.fixture
def flaky(control_plane: Access, tmp_path: Path) -> Iterator[FlakyApi]:
    with FlakyApi(control_plane, control_plane.kubeconfig, tmp_path) as flaky:
        yield flaky


async def test_a_watch_and_every_other_call_come_over_connections_of_their_own(flaky: FlakyApi, stage: KubeStage) -> None:
    cluster = FollowingStage.through(flaky.kubeconfig, stage).open()
    try:
        pod = await running(cluster, stage.order("w-1"))
        stamped = await cluster.protect(pod.name, pod.uid, Stamp("acme", "c-1", 7))
        assert stamped is not None
        assert await cluster.clear(pod.name, pod.uid, stamped.version)
        assert await cluster.verify("unknown") is None
        await cluster.delete(pod.name, pod.uid, 1.0)
    finally:
        await cluster.close()
    watches = {call.port for call in flaky.calls if "watch" in call.query}
    others = [call for call in flaky.calls if "watch" not in call.query]
    assert len(watches) >= 2, "pods and nodes are followed"
    assert {"GET", "POST", "PATCH", "DELETE"} == {call.method for call in others}
    assert not watches & {call.port for call in others}


async def test_more_watches_than_connections_hold_up_no_call(control_plane: Access) -> None:
    api, standing = Api(find_access(control_plane.kubeconfig)), set[int]()

    async def watch(n: int) -> None:
        async with api.stream(NODES, {"watch": "1", "resourceVersion": "0"}, 60.0) as lines:
            standing.add(n)
            async for _ in lines:
                pass
        standing.remove(n)

    watching = [asyncio.create_task(watch(n)) for n in range(AT_ONCE + 1)]
    try:
        assert await sooner(lambda: len(standing) == AT_ONCE), f"only {len(standing)} stand"
        assert b"major" in await api.get("/version")
        assert b"tokenreviews" in await api.get("/apis/authentication.k8s.io/v1")
        assert len(standing) == AT_ONCE, "and one more waits for a connection still"
    finally:
        for task in watching:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*watching, return_exceptions=True)
        await api.close()
