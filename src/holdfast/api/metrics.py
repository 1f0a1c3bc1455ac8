"""Fill what is read from the database just before it is shown: every replica shows the same, and nothing flickers."""

from typing import Any

from ..metrics import Metrics
from ..ports.store import PoolLoad
from .context import Context


async def refresh(context: Context) -> None:
    store = context.store
    figures, loads = await store.metrics(), await store.pools.loads()
    duties, replicas = await store.fleet.duties(), await store.fleet.replicas()
    # Nothing is awaited from here on: two scrapes at once would add up what each of them counts.
    m = context.metrics
    for gauge in (m.workers, m.suspects, m.unconfirmed, m.claims, m.oldest, m.starved, m.saturated, m.frozen, m.replicas):
        gauge.clear()
    for row in figures["workers"]:
        m.workers.labels(row["pool"], row["state"]).set(row["n"])
        m.suspects.labels(row["pool"]).inc(row["suspects"])
        m.unconfirmed.labels(row["pool"]).inc(row["unconfirmed"])
    for row in figures["claims"]:
        m.claims.labels(row["pool"], row["state"]).set(row["n"])
    for load in sorted(loads, key=lambda load: load.pool.state == "live"):  # of two with one name the live one is shown
        _pool(m, load)
    for duty in duties:
        _duty(m, duty)
    for replica in replicas:
        m.replicas.labels(replica["state"]).inc()
    installation = figures["installation"]
    m.brake.set(installation["braked"])
    m.recovering.set(installation["recovering"])
    m.recoveries.set(installation["recoveries"])
    m.epoch.set(installation["epoch"])


def _pool(m: Metrics, load: PoolLoad) -> None:
    name = load.pool.name
    # Waiting with free workers is a fault in matching; without, a lack of capacity. 2 s: the backstop runs every second.
    late = load.servable > 0 and load.oldest_wait > 2
    m.oldest.labels(name).set(load.oldest_wait)
    m.starved.labels(name).set(late and load.free_ready > 0)
    m.saturated.labels(name).set(load.servable > 0 and load.free_ready == 0)
    m.frozen.labels(name).set(load.pool.frozen is not None)
    m.unprotected.labels(name)  # from 0 on: the first one is an increase, and not a new series that no alert sees


def _duty(m: Metrics, duty: dict[str, Any]) -> None:
    name = duty["duty"]
    m.duty_success.labels(name).set(duty["success_at"].timestamp() if duty["success_at"] else 0)
    m.duty_seconds.labels(name).set(duty["seconds"] or 0)
    m.duty_actions.set(duty["actions"], name)
    m.duty_skips.set(duty["skips"], name)
    m.term.labels(name).set(duty["number"])
    m.takeovers.set(duty["taken_over"], name)
    m.duty_held.labels(name).set(duty["held"])
