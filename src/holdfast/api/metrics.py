"""Fills the metrics that come from the database at each scrape, so that every replica shows the same values."""

from typing import Any

from ..metrics import Metrics
from ..ports.store import PoolLoad
from .context import Context


async def refresh(context: Context) -> None:
    store = context.store
    figures, loads = await store.metrics(), await store.pools.loads()
    duties, replicas = await store.fleet.duties(), await store.fleet.replicas()
    # There must be no await from here on. Otherwise two scrapes at the same time would both add to the same gauges.
    m = context.metrics
    for gauge in (
        m.workers,
        m.suspects,
        m.unconfirmed,
        m.claims,
        m.oldest,
        m.starved,
        m.saturated,
        m.frozen,
        m.replicas,
        m.tenant_brake,
    ):
        gauge.clear()
    for row in figures["workers"]:
        m.workers.labels(row["pool"], row["state"]).set(row["n"])
        m.suspects.labels(row["pool"]).inc(row["suspects"])
        m.unconfirmed.labels(row["pool"]).inc(row["unconfirmed"])
    for row in figures["claims"]:
        m.claims.labels(row["pool"], row["state"]).set(row["n"])
    for load in sorted(loads, key=lambda load: load.pool.state == "live"):  # the live pool of a name is set last
        _pool(m, load)
    for duty in duties:
        _duty(m, duty)
    for replica in replicas:
        m.replicas.labels(replica["state"]).inc()
    installation = figures["installation"]
    m.brake.set(installation["braked"])
    for tenant in figures["braked_tenants"]:
        m.tenant_brake.labels(tenant).set(1)
    m.recovering.set(installation["recovering"])
    m.recoveries.set(installation["recoveries"])
    m.epoch.set(installation["epoch"])


def _pool(m: Metrics, load: PoolLoad) -> None:
    name = load.pool.name
    # Claims that wait although workers are free are a fault of matching; without free workers it is a lack of capacity.
    # The limit is 2 s, because matching runs at least every second.
    late = load.servable > 0 and load.oldest_wait > 2
    m.oldest.labels(name).set(load.oldest_wait)
    m.starved.labels(name).set(late and load.free_ready > 0)
    m.saturated.labels(name).set(load.servable > 0 and load.free_ready == 0)
    m.frozen.labels(name).set(load.pool.frozen is not None)
    # They start at 0; otherwise the first one is a new series, which no alert sees as an increase.
    m.unprotected.labels(name)
    m.activations_failed.labels(name)


def _duty(m: Metrics, duty: dict[str, Any]) -> None:
    name = duty["duty"]
    m.duty_success.labels(name).set(duty["success_at"].timestamp() if duty["success_at"] else 0)
    m.duty_seconds.labels(name).set(duty["seconds"] or 0)
    m.duty_actions.set(duty["actions"], name)
    m.duty_skips.set(duty["skips"], name)
    m.term.labels(name).set(duty["number"])
    m.takeovers.set(duty["taken_over"], name)
    m.duty_held.labels(name).set(duty["held"])
