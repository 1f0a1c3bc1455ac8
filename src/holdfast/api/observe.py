"""Fill the gauges from the database just before they are shown: every replica shows the same, and nothing flickers."""

from .context import Context


async def refresh(context: Context) -> None:
    m, store = context.metrics, context.store
    figures = await store.metrics()
    for gauge in (m.workers, m.suspects, m.claims, m.oldest, m.starved, m.saturated, m.frozen, m.replicas):
        gauge.clear()
    for row in figures["workers"]:
        m.workers.labels(row["pool"], row["state"]).set(row["n"])
        m.suspects.labels(row["pool"]).inc(row["suspects"])
    for row in figures["claims"]:
        m.claims.labels(row["pool"], row["state"]).set(row["n"])
    for load in await store.pools.loads():
        name = load.pool.name
        # Waiting with free workers is a fault in matching; without, a lack of capacity. 2 s: the backstop runs every second.
        late = load.servable > 0 and load.oldest_wait > 2
        m.oldest.labels(name).set(load.oldest_wait)
        m.starved.labels(name).set(late and load.free_ready > 0)
        m.saturated.labels(name).set(load.servable > 0 and load.free_ready == 0)
        m.frozen.labels(name).set(load.pool.frozen is not None)
    for duty in await store.fleet.duties():
        name = duty["duty"]
        m.duty_success.labels(name).set(duty["success_at"].timestamp() if duty["success_at"] else 0)
        m.duty_seconds.labels(name).set(duty["seconds"] or 0)
        m.duty_actions.labels(name).set(duty["actions"])
        m.duty_skips.labels(name).set(duty["skips"])
        m.term.labels(name).set(duty["number"])
        m.takeovers.labels(name).set(duty["taken_over"])
        m.duty_held.labels(name).set(duty["held"])
    for replica in await store.fleet.replicas():
        m.replicas.labels(replica["state"]).inc()
    installation = figures["installation"]
    m.brake.set(installation["braked"])
    m.recovering.set(installation["recovering"])
    m.recoveries.set(installation["recoveries"])
    m.epoch.set(installation["epoch"])
