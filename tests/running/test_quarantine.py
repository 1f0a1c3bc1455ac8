"""A person is alerted only about a pod that really exists, whatever a list showed."""

from pathlib import Path

from holdfast.duties.actions import Quarantine
from holdfast.local.layout import Layout
from holdfast.model.effect import Stale
from holdfast.postgres.database import Database
from holdfast.postgres.store import PostgresStore
from holdfast.wiring import local_cluster, wire


async def test_a_pod_that_only_a_stale_list_shows_is_not_reported(dsn: str, home: Path) -> None:
    layout = Layout(home)
    layout.ensure()
    store = PostgresStore(await Database.connect(dsn, size=2))
    wired = wire(store, local_cluster(layout), key=b"key", url="http://127.0.0.1:1")
    assert await wired.replica.apply(Quarantine("w-long-gone", "a pod without a row that is stamped or busy")) == Stale()
    events, _ = await store.history.events(after=None, limit=100)
    assert not [event for event in events if event.kind == "pod.quarantined"]
    await store.close()
    await wired.cluster.close()
