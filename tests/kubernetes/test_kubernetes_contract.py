"""Pods of a real API server keep the contract of every cluster, with a list per read and with a watch."""

import asyncio
from collections.abc import Callable
from typing import Any, Never

import pytest
from kube_stage import FollowingCluster, FollowingStage

from contracts.cluster import ClusterContract, running, stamp, until
from holdfast.ports.cluster import Cluster
from holdfast_testcluster.access import Access


class TestKubernetesCluster(ClusterContract):
    pass


class TestKubernetesClusterThatFollows(ClusterContract):
    """Runs the contract again with watches, because a view from watches must be as good as a list."""

    @pytest.fixture
    def stage(self, control_plane: Access, namespace: str, make_nodes: Callable[..., Any]) -> FollowingStage:
        return FollowingStage(control_plane, namespace, make_nodes(control_plane, namespace, nodes=1))

    async def test_what_others_do_is_known_without_asking(
        self, cluster: Cluster, stage: FollowingStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(cluster, FollowingCluster)
        other = stage.open()
        pod = await running(other, stage.order("w-1"))
        await cluster.follows()
        monkeypatch.setattr(cluster._api, "get", _ask_nobody)

        async def protected() -> bool:
            return [each.protected for each in await cluster.pods()] == [True]

        async def ending() -> bool:
            return [each.terminating for each in (await cluster.read_cached(["w-1"])).values()] == [True]

        assert [each.uid for each in await cluster.pods()] == [pod.uid]
        written = await other.protect("w-1", pod.uid, stamp())
        await until(protected, "the protection is known")
        assert written is not None
        assert (await cluster.read_cached(["w-1"]))["w-1"].stamp == written.stamp
        await other.delete("w-1", pod.uid, 5)
        await until(ending, "its end is known")
        await other.close()

    async def test_a_pod_that_went_is_hinted_at_and_not_known_any_more(self, cluster: Cluster, stage: FollowingStage) -> None:
        other = stage.open()
        pod = await running(other, stage.order("w-1"))
        assert len(await cluster.pods()) == 1
        hints = set[str]()
        going = asyncio.ensure_future(_gather(cluster, hints))

        async def gone() -> bool:
            await other.forget("w-1", pod.uid)
            return await cluster.pods() == []

        await other.delete("w-1", pod.uid, 0)
        await until(gone, "it is not known any more")
        going.cancel()
        assert hints == {"w-1"}
        assert await cluster.read_cached(["w-1"]) == {}
        await other.close()


async def _ask_nobody(*_: object, **__: object) -> Never:
    raise AssertionError("it asked the API server for what it should know")


async def _gather(cluster: Cluster, into: set[str]) -> None:
    async for names in cluster.changes():
        into |= names
