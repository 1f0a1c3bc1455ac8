"""The contract that every Cluster keeps. An adapter's tests subclass ClusterContract and provide a `stage` fixture.

class TestMyCluster(ClusterContract): ...   # with a fixture `stage` that returns a Stage, and ends all its pods
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from holdfast.model.pod import Pod, Stamp
from holdfast.ports.cluster import AgentIdentity, Cluster, ClusterUnavailable, Order, Output, Refused
from holdfast.ports.recovery import Remembered
from waiting import Deadline, becomes

FOREVER = ["sleep", "1000"]
PATIENCE = 20.0  # seconds after which a test fails whose condition does not come true


class Stage(Protocol):
    """An empty place for pods, with the methods that the contract's tests need."""

    def open(self, install: str = "one") -> Cluster:
        """Returns a new connection to the cluster, such as another replica would have."""

    def order(self, worker: str, argv: list[str] = FOREVER) -> Order:
        """Returns the order for a pod without an agent that runs this command."""

    def order_with_agent(self, worker: str) -> Order:
        """Returns the order for a pod with an agent. The agent may be a stand-in that does nothing."""

    def token(self, pod: Pod) -> str:
        """Returns the bootstrap token that this pod's agent reads."""

    def put_output(self, claim: str, data: bytes, *, truncated: bool = False) -> None:
        """Stores the output of a claim as if its worker had written it some minutes ago."""


async def until(condition: Callable[[], Awaitable[bool]], what: str, patience: float = PATIENCE) -> None:
    await becomes(condition, patience, what)


async def verified(cluster: Cluster, token: str) -> AgentIdentity | None:
    """Returns what the cluster says about a token. It is asked again if it does not answer, because a cluster may bound how often
    tokens of one pod are reviewed."""

    async def once() -> tuple[AgentIdentity | None] | None:
        try:
            return (await cluster.verify(token),)
        except ClusterUnavailable:
            return None

    return (await becomes(once, 30, "the cluster answers"))[0]


async def reaches(cluster: Cluster, name: str, phase: str, ready: bool = False) -> Pod:
    """Returns the pod as soon as it is in this phase."""
    found: list[Pod] = []

    async def there() -> bool:
        pod = await cluster.read(name)
        assert pod is not None
        found[:] = [pod]
        return pod.phase == phase and (pod.ready or not ready)

    await until(there, f"{name} {phase}")
    return found[0]


def forged_signature(token: str) -> str:
    """Returns the token with another signature. The last letter stays, because some bits of it do not count in base64."""
    return token[:-8] + ("0" if token[-8] != "0" else "1") + token[-7:]


async def running(cluster: Cluster, order: Order) -> Pod:
    created = await cluster.create(order)
    assert isinstance(created, Pod)
    return await reaches(cluster, order.name, "running", ready=not order.pool.spec.worker.agent)


def stamp(claim: str = "c-1", fence: int = 1) -> Stamp:
    return Stamp(tenant="acme", claim=claim, fence=fence)


class ClusterContract:
    async def test_a_new_pod_has_what_was_ordered(self, cluster: Cluster, stage: Stage) -> None:
        order = stage.order("w-1")
        pod = await running(cluster, order)
        assert (pod.name, pod.worker, pod.install) == ("w-1", "w-1", "one")
        assert (pod.pool_id, pod.pool, pod.revision) == (
            order.pool.id,
            order.pool.name,
            order.pool.revision,
        )
        assert pod.epoch == order.epoch
        assert pod.uid
        assert pod.ready
        assert not pod.terminating
        assert pod.stamp is None
        assert not pod.protected
        assert await cluster.pods() == [pod]

    async def test_a_pod_with_an_agent_is_ready_only_by_its_agents_report(self, cluster: Cluster, stage: Stage) -> None:
        assert not (await running(cluster, stage.order_with_agent("w-1"))).ready

    async def test_racing_creators_make_one_pod(self, cluster: Cluster, stage: Stage) -> None:
        replicas = [cluster, *(stage.open() for _ in range(3))]
        order = stage.order("w-1")
        made = await asyncio.gather(*(replica.create(order) for replica in replicas for _ in range(3)))
        assert len({pod.uid for pod in made if isinstance(pod, Pod)}) == 1
        assert len(made) == 12
        assert not any(isinstance(pod, Refused) for pod in made)
        assert len(await cluster.pods()) == 1
        for replica in replicas[1:]:
            await replica.close()

    async def test_what_cannot_run_is_refused_and_leaves_nothing(self, cluster: Cluster, stage: Stage) -> None:
        refused = await cluster.create(stage.order("w-1", []))
        assert isinstance(refused, Refused)
        assert refused.kind == "invalid"
        assert refused.reason
        assert await cluster.pods() == []
        assert await cluster.read("w-1") is None

    async def test_pods_of_another_installation_are_invisible_and_untouched(self, cluster: Cluster, stage: Stage) -> None:
        other = stage.open("two")
        foreign = await running(other, stage.order("w-2"))
        mine = await running(cluster, stage.order("w-1"))
        assert [pod.uid for pod in await cluster.pods()] == [mine.uid]
        assert await cluster.protect("w-2", foreign.uid, stamp()) is None
        await cluster.delete("w-2", foreign.uid, 0)
        await cluster.forget("w-2", foreign.uid)
        assert await other.pods() == [foreign]
        await other.close()

    async def test_protect_stamps_and_answers_with_the_pod(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order("w-1"))
        stamped = await cluster.protect("w-1", pod.uid, stamp("c-7", 42))
        assert stamped is not None
        assert stamped.protected
        assert stamped.stamp is not None
        assert (stamped.stamp.tenant, stamped.stamp.claim, stamped.stamp.fence) == ("acme", "c-7", 42)
        assert abs(stamped.stamp.at - time.time()) < 60
        assert stamped.version != pod.version
        assert await stage.open().pods() == [stamped]

    async def test_protect_of_another_uid_or_of_nothing_is_none(self, cluster: Cluster, stage: Stage) -> None:
        await running(cluster, stage.order("w-1"))
        assert await cluster.protect("w-1", "another", stamp()) is None
        assert await cluster.protect("w-0", "another", stamp()) is None
        pod = await cluster.read("w-1")
        assert pod is not None
        assert pod.stamp is None

    async def test_a_clear_fits_what_was_seen(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order("w-1"))
        stamped = await cluster.protect("w-1", pod.uid, stamp())
        assert stamped is not None
        assert await cluster.clear("w-1", pod.uid, stamped.version)
        clean = await cluster.read("w-1")
        assert clean is not None
        assert (clean.stamp, clean.protected) == (None, False)
        assert not await cluster.clear("w-1", pod.uid, stamped.version), "it has changed since"

    async def test_a_late_clear_fails_after_a_new_protect(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order("w-1"))
        first = await cluster.protect("w-1", pod.uid, stamp("c-1", 1))
        assert first is not None
        assert await cluster.clear("w-1", pod.uid, first.version)
        second = await cluster.protect("w-1", pod.uid, stamp("c-1", 1))
        assert second is not None
        assert not await cluster.clear("w-1", pod.uid, first.version)
        assert not await cluster.clear("w-1", "another", second.version)
        kept = await cluster.read("w-1")
        assert kept is not None
        assert kept.protected

    async def test_of_racing_clears_and_protects_the_protect_stands(self, cluster: Cluster, stage: Stage) -> None:
        other = stage.open()
        pod = await running(cluster, stage.order("w-1"))
        for fence in range(1, 30):
            before = await cluster.read("w-1")
            assert before is not None
            _, protected = await asyncio.gather(
                other.clear("w-1", pod.uid, before.version),
                cluster.protect("w-1", pod.uid, stamp("c-1", fence)),
            )
            assert protected is not None
            after = await cluster.read("w-1")
            assert after is not None
            assert after.stamp is not None
            assert after.stamp.fence == fence
        await other.close()

    async def test_delete_ends_the_pod(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order("w-1"))
        await cluster.delete("w-1", pod.uid, 5)
        await cluster.delete("w-1", pod.uid, 5)
        assert (await reaches(cluster, "w-1", "ended")).terminating

    async def test_protect_of_a_terminating_pod_shows_that_it_terminates(self, cluster: Cluster, stage: Stage) -> None:
        stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
        pod = await running(cluster, stage.order("w-1", stubborn))
        await cluster.delete("w-1", pod.uid, 30)
        stamped = await cluster.protect("w-1", pod.uid, stamp())
        assert stamped is None or stamped.terminating
        await cluster.delete("w-1", pod.uid, 0)
        await reaches(cluster, "w-1", "ended")

    async def test_delete_never_touches_another_uid(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order("w-1"))
        await cluster.delete("w-1", "another", 0)
        await cluster.forget("w-1", "another")
        assert await cluster.pods() == [pod]

    async def test_deleting_and_forgetting_the_absent_is_success(self, cluster: Cluster, stage: Stage) -> None:
        await cluster.delete("w-0", "gone", 0)
        await cluster.forget("w-0", "gone")
        assert await cluster.read("w-0") is None
        assert not await cluster.clear("w-0", "gone", "1")

    async def test_an_exit_code_is_kept_though_no_replica_watched(self, cluster: Cluster, stage: Stage) -> None:
        pod = await cluster.create(stage.order("w-1", ["sh", "-c", "sleep 0.3; exit 7"]))
        assert isinstance(pod, Pod)
        assert await cluster.protect("w-1", pod.uid, stamp("c-1", 9)) is not None
        await cluster.close()
        later = stage.open()
        ended = await reaches(later, "w-1", "ended")
        assert (ended.exit_code, ended.exit_fence) == (7, 9)
        await later.close()

    async def test_forget_removes_only_what_has_ended(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order("w-1"))
        await cluster.forget("w-1", pod.uid)
        assert await cluster.pods() == [pod]
        await cluster.delete("w-1", pod.uid, 5)
        await reaches(cluster, "w-1", "ended")
        await cluster.forget("w-1", pod.uid)

        async def nothing() -> bool:
            return await cluster.pods() == []

        await until(nothing, "the pod ends: its shim may still have to write its last record")
        again = await cluster.create(stage.order("w-1"))
        assert isinstance(again, Pod)
        assert again.uid != pod.uid, "a new pod under an old name is another pod"

    async def test_changes_name_the_pod(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order("w-1"))
        changes = cluster.changes()
        hint = asyncio.ensure_future(anext(changes))
        deadline = Deadline(PATIENCE)
        fence = 0
        while not hint.done():  # repeat the change, because a single hint may be missed
            assert not deadline.over()
            fence += 1
            await cluster.protect("w-1", pod.uid, stamp("c-1", fence))
            await asyncio.wait([hint], timeout=0.2)
        assert hint.result() == {"w-1"}

    async def test_a_token_names_its_pod_and_no_other(self, cluster: Cluster, stage: Stage) -> None:
        pod = await running(cluster, stage.order_with_agent("w-1"))
        token = stage.token(pod)
        assert await verified(cluster, token) == AgentIdentity("w-1", pod.uid)
        assert await verified(stage.open("two"), token) is None, "another installation's"
        for forged in (
            "",
            "x",
            "..",
            token[:-1],
            forged_signature(token),
            "w-2" + token[3:],
        ):
            assert await verified(cluster, forged) is None
        await cluster.delete("w-1", pod.uid, 0)
        await reaches(cluster, "w-1", "ended")
        await cluster.forget("w-1", pod.uid)
        assert await verified(cluster, token) is None, "its pod is gone"

    async def test_the_high_water_mark_never_falls(self, cluster: Cluster, stage: Stage) -> None:
        assert await cluster.remembered() is None
        await cluster.remember(Remembered("one", 10, 1))
        await asyncio.gather(*(cluster.remember(Remembered("one", mark, 1)) for mark in (12, 30, 5, 29, 1)))
        assert await stage.open().remembered() == Remembered("one", 30, 1)
        await cluster.remember(Remembered("one", 20, 2))
        assert await cluster.remembered() == Remembered("one", 30, 2)


class OutputContract:
    """Tests for clusters that store outputs. In other clusters an output is the container's log, and goes with the container."""

    async def test_output_is_read_in_pieces(self, cluster: Cluster, stage: Stage) -> None:
        stage.put_output("c-1", b"hello world", truncated=True)
        assert await cluster.output("c-1", "w-1", 0, 5) == Output(b"hello", 0, 11, True)
        assert await cluster.output("c-1", "w-1", 6, 100) == Output(b"world", 6, 11, True)
        assert await cluster.output("c-1", "w-1", 50, 100) == Output(b"", 50, 11, True)
        assert await cluster.output("c-0", "w-1", 0, 100) == Output(b"", 0, 0)
        with pytest.raises(ValueError, match="not the id"):
            await cluster.output("../secret", "w-1", 0, 100)

    async def test_pruning_keeps_what_is_named(self, cluster: Cluster, stage: Stage) -> None:
        for claim in ("c-1", "c-2", "c-3"):
            stage.put_output(claim, b"x", truncated=True)
        sizes = await cluster.output_sizes()
        assert sizes.keys() == {"c-1", "c-2", "c-3"}
        assert min(sizes.values()) >= 1
        assert await cluster.prune_output({"c-2"}) == 2
        assert (await cluster.output_sizes()).keys() == {"c-2"}
        assert (await cluster.output("c-1", "w-1", 0, 9)).size == 0
        assert await cluster.output("c-2", "w-1", 0, 9) == Output(b"x", 0, 1, True)
