"""Many hand-overs take turns: none is given up because it waited for others, and none waits for a cluster that hangs."""

import asyncio

from holdfast.claimpath.path import YIELD_SECONDS
from holdfast.claimpath.protection import TRIES, TRY_SECONDS, TURNS
from holdfast.metrics import Metrics
from holdfast.ports.store import Pair
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, claim_path
from postgres.store_steps import BARE, ask, make_pool, make_warm, match

BURST = 3 * TURNS
ERRORS = "holdfast_protect_errors_total"


async def handed(store: PostgresStore, kind: type[RecordedCluster]) -> tuple[RecordedCluster, Metrics, float]:
    """Runs many hand-overs on a cluster. Returns the cluster, the metrics and the duration."""
    pool = await make_pool(store, BARE)
    cluster, metrics = kind(pool, await make_warm(store, pool, BURST)), Metrics()
    pairs: list[Pair] = await match(store, pool, *(ask() for _ in range(BURST)))
    handovers = claim_path(store, cluster, metrics)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(handovers.start_hand_over(pool, pair) for pair in pairs))
    return cluster, metrics, asyncio.get_running_loop().time() - began


class Slow(RecordedCluster):
    """Each write is so slow that not all of them finish within the one second of a try."""

    at_once = most = 0

    async def protect(self, *about: object) -> object:  # type: ignore[override]
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.4 * TRY_SECONDS)
        self.at_once -= 1
        return await super().protect(*about)  # type: ignore[arg-type]


async def test_a_burst_takes_turns_and_no_hand_over_is_given_up_for_waiting(store: PostgresStore) -> None:
    cluster, metrics, _ = await handed(store, Slow)
    assert isinstance(cluster, Slow)
    assert cluster.most == TURNS
    assert metrics.registry.get_sample_value(ERRORS) == 0
    shown = await store.db.rows("SELECT protected FROM holdfast.claim WHERE state = 'active'")
    assert [row["protected"] for row in shown] == [True] * BURST


class Hanging(RecordedCluster):
    async def protect(self, *_: object) -> object:  # type: ignore[override]
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_in_a_burst_no_claim_waits_longer_for_a_cluster_that_hangs_than_alone(store: PostgresStore) -> None:
    _, _, took = await handed(store, Hanging)
    assert took < 3 * TRIES * TRY_SECONDS, "three tries, and not three for each turn before"
    shown = await store.db.rows("SELECT protected FROM holdfast.claim WHERE state = 'active'")
    assert [row["protected"] for row in shown] == [False] * BURST


async def test_callers_that_can_wait_yield_to_hand_overs_but_not_forever(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    cluster = Hanging(pool, await make_warm(store, pool))
    [pair] = await match(store, pool, ask())
    handovers = claim_path(store, cluster)
    await asyncio.wait_for(handovers.yield_to_hand_overs(), YIELD_SECONDS / 2)  # no hand-over is in progress
    handing = asyncio.create_task(handovers.start_hand_over(pool, pair))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await handovers.yield_to_hand_overs()
    assert asyncio.get_running_loop().time() - began >= YIELD_SECONDS
    assert not handing.done(), "it still waits for its cluster"
    await handing
    await asyncio.wait_for(handovers.yield_to_hand_overs(), YIELD_SECONDS / 2)
