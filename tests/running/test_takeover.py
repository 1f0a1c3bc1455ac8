"""A duty whose holder is alive but makes no progress is taken over, but only by a replica whose own reads work."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.local.cluster import LocalCluster
from holdfast.local.layout import Layout
from holdfast.model.pod import Pod
from holdfast.ports.cluster import ClusterUnavailable
from holdfast.postgres.database import Database
from holdfast.postgres.store import PostgresStore
from holdfast.wiring import Wired, local_cluster, wire
from waiting import becomes

pytestmark = pytest.mark.whole  # these tests run several replicas for many seconds


class Hanging(LocalCluster):
    """A cluster that one replica cannot list: the call never returns."""

    async def pods(self) -> list[Pod]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Unreachable(LocalCluster):
    async def pods(self) -> list[Pod]:
        raise ClusterUnavailable("cut off")


async def test_a_duty_that_stands_still_is_taken_over_by_one_that_can_read(dsn: str, home: Path) -> None:
    stuck = await replica(dsn, home, Hanging)
    stuck.replica.start()
    await until(lambda: stuck.replica.terms.trusted("converge", now()), "the stuck one holds converge")
    blind = await replica(dsn, home, Unreachable)
    blind.replica.start()

    able = await replica(dsn, home, LocalCluster)
    able.replica.start()
    await until(lambda: able.replica.terms.trusted("converge", now()), "the able one took converge over")
    assert not blind.replica.terms.trusted("converge", now()), "one whose own reads fail takes nothing"
    duties = {duty["duty"]: duty for duty in await able.store.fleet.duties()}
    assert duties["converge"]["holder"] == able.replica.id
    assert duties["converge"]["taken_over"] >= 1
    await until_success(able)
    for wired in (stuck, blind, able):
        await wired.replica.stop()
        await wired.store.close()  # type: ignore[attr-defined]
        await wired.cluster.close()


async def test_with_the_cluster_away_no_replica_takes_a_term_from_another(dsn: str, home: Path) -> None:
    replicas = [await replica(dsn, home, Unreachable) for _ in range(2)]
    for wired in replicas:
        wired.replica.start()
    await until(lambda: any(w.replica.terms.trusted("converge", now()) for w in replicas), "a replica holds converge")
    store = replicas[0].store
    first = await _term(store)

    async def stale() -> bool:
        found = await store.fleet.duties()  # type: ignore[attr-defined]
        converge = next(duty for duty in found if duty["duty"] == "converge")
        return converge["skips"] >= 8  # after so many failed passes it is stale

    await until_async(stale, "passes fail for a while")
    assert await _term(store) == first
    for wired in replicas:
        await wired.replica.stop()
        await wired.store.close()  # type: ignore[attr-defined]


async def replica(dsn: str, home: Path, kind: type[LocalCluster]) -> Wired:
    layout = Layout(home)
    layout.ensure()
    layout.install.write_text("i-test")  # the installation of this database
    made = local_cluster(layout)
    cluster = made if kind is LocalCluster else kind(
        layout.workers, layout.output, layout.highwater, layout.servers, made.install, layout.key.read_bytes()
    )  # fmt: skip
    store = PostgresStore(await Database.connect(dsn, size=4))
    wired = wire(store, cluster, key=b"key", url="http://127.0.0.1:1")
    wired.replica.converge.period = 1.0  # 3 periods + 5 s instead of 50 s
    return wired


async def _term(store: object) -> tuple[str, int]:
    found = await store.fleet.duties()  # type: ignore[attr-defined]
    return next((duty["holder"], duty["number"]) for duty in found if duty["duty"] == "converge")


async def until_success(wired: Wired) -> None:
    async def succeeded() -> bool:
        found = await wired.store.fleet.duties()
        age = next(duty["age"] for duty in found if duty["duty"] == "converge")
        return age is not None and age < 5

    await until_async(succeeded, "converge succeeds again")


async def until(check: Callable[[], bool], what: str, within: float = 40) -> None:
    async def asked() -> bool:
        return check()

    await until_async(asked, what, within)


async def until_async(check: Callable[[], Awaitable[object]], what: str, within: float = 40) -> None:
    await becomes(check, within, what)


def now() -> float:
    return asyncio.get_running_loop().time()
