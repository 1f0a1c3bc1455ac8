"""A pod without a row is ended once, however long it takes to end: the brake counts what is ended."""

import msgspec

from holdfast.duties.converge import Converge
from holdfast.postgres.store import PostgresStore
from store.makes import JOB, make_pool
from store.shelf import Shelf, passed

ENDINGS = "SELECT count(*) FROM holdfast.ending WHERE kind = 'worker'"


class Ending(Shelf):
    """Its pods take their time."""

    async def delete(self, name: str, uid: str, grace: float) -> None:
        self.kept[name] = msgspec.structs.replace(self.kept[name], terminating=True)


async def test_an_orphan_that_takes_its_time_to_end_counts_once(store: PostgresStore) -> None:
    shelf = Ending(await make_pool(store, JOB), ["w-orphan"])
    shelf.kept["w-orphan"] = msgspec.structs.replace(shelf.kept["w-orphan"], epoch=1)
    converge = Converge()
    for _ in range(3):
        await passed(converge, store, shelf)
    assert shelf.kept["w-orphan"].terminating
    assert await store.db.value(ENDINGS) == 1
