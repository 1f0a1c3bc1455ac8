"""What `pools` reads, and in which order it reads and acts."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from clockwork_pool import load, pool

from holdfast.duties.duty import Ports
from holdfast.duties.pool_actions import DrainPool, Ensure, FinishPool, PutPool
from holdfast.duties.pools import ObservedPools, Pools
from holdfast.ports.declared import Declared

OBJECT = Declared(name="new", uid="u-9", generation=1, spec={}, guarded=True)
LOST = load(msgspec.structs.replace(pool(), id="p-u-1", name="lost", source="cr"))
DRAINED = load(msgspec.structs.replace(pool(), id="p-2", name="old", state="draining"))


class Both:
    """The store and the objects of the cluster, with the order in which they were read."""

    def __init__(self, objects: list[Declared] | None) -> None:
        self.objects, self.read = objects, cast(list[str], [])
        self.pools = self

    async def list(self) -> Any:
        self.read.append("objects")
        return self.objects

    async def loads(self) -> Any:
        self.read.append("rows")
        return [LOST, DRAINED]

    @property
    def ports(self) -> Ports:
        declarations = None if self.objects is None else self
        return Ports(cast(Any, self), cast(Any, SimpleNamespace(declarations=declarations)))


def test_objects_are_read_before_rows() -> None:
    """Otherwise a pool that is created in between would look like one whose object is gone, and would be drained."""
    both = Both([OBJECT])
    assert asyncio.run(Pools().observe(both.ports)) == ObservedPools([OBJECT], [LOST, DRAINED])
    assert both.read == ["objects", "rows"]


def test_without_declared_pools_only_rows_are_read() -> None:
    both = Both(None)
    assert asyncio.run(Pools().observe(both.ports)) == ObservedPools(None, [LOST, DRAINED])
    assert both.read == ["rows"]


def test_an_empty_list_of_objects_is_a_list() -> None:
    assert asyncio.run(Pools().observe(Both([]).ports)).declared == []


def test_objects_come_first_then_pools_without_one_then_what_stands_beside_pods_then_the_end() -> None:
    assert Pools().plan(ObservedPools([OBJECT], [LOST, DRAINED])) == [
        PutPool(OBJECT),
        DrainPool("lost", "p-u-1", gone="u-1"),
        Ensure((LOST.pool, DRAINED.pool)),
        FinishPool("p-2"),
    ]
    assert Pools().plan(ObservedPools(None, [LOST, DRAINED])) == [Ensure((LOST.pool, DRAINED.pool)), FinishPool("p-2")]
