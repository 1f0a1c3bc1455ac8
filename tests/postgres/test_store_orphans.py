"""A pod without a row is ended and counted by the brake once, however long its end takes."""

import msgspec

from holdfast.duties.converge import Converge
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, passed
from postgres.store_steps import JOB, make_pool

ENDINGS = "SELECT count(*) FROM holdfast.ending WHERE kind = 'worker'"


class Ending(RecordedCluster):
    """A cluster whose pods end slowly."""

    async def delete(self, name: str, uid: str, grace: float) -> None:
        self.kept[name] = msgspec.structs.replace(self.kept[name], terminating=True)


async def test_an_orphan_that_takes_its_time_to_end_counts_once(store: PostgresStore) -> None:
    cluster = Ending(await make_pool(store, JOB), ["w-orphan"])
    cluster.kept["w-orphan"] = msgspec.structs.replace(cluster.kept["w-orphan"], epoch=1)
    converge = Converge()
    for _ in range(3):
        await passed(converge, store, cluster)
    assert cluster.kept["w-orphan"].terminating
    assert await store.db.value(ENDINGS) == 1
