"""Explains in sentences, with times and reasons, why a claim waits or ended, and what a worker or pool does."""

from datetime import UTC, datetime
from typing import Any

from ..model.claim import Claim
from ..model.duration import text
from ..model.pool import Pool
from ..model.shown import shown
from ..ports.logs import WorkerLog
from ..ports.store import Event, PoolLoad
from .auth import Caller
from .context import Context

SHOWS_WORKER = ("claim.active", "claim.adopted")  # the events that show a tenant the worker of its claim (P1)
LAST_LINES = 8  # of a worker's log
SLOW_HANDOVER = 2.0  # seconds; a longer hand-over is called slow


async def explain(context: Context, caller: Caller, kind: str, id_: str) -> tuple[list[str], dict[str, Any]]:
    tenant: str | None = None
    if kind == "claim":
        sentences, facts, tenant = await explain_claim(context, caller, id_)
    elif kind == "worker":
        sentences, facts, tenant = await explain_worker(context, id_)
    else:
        sentences, facts = await explain_pool(context, id_)
    brake = await context.store.fleet.brake()
    own = next((each for each in brake["tenants"] if each["tenant"] == tenant), None)
    if brake["tripped"] or own is not None:
        now = await context.store.now()
        # After the state, because it limits what follows.
        sentences.insert(1, _braked(brake, now, caller) if brake["tripped"] or own is None else _tenant_braked(own, now, caller))
    return [shown(each) for each in sentences], facts | {"braked": brake["tripped"] or own is not None}


def _braked(brake: dict[str, Any], now: float, caller: Caller) -> str:
    """Returns why nothing is ended. A tenant is not shown the reason, because it counts the claims of all tenants."""
    tripped = f"The brake has been tripped {_since(brake['tripped_at'].timestamp(), now)}"
    reason = f" ({brake['reason']})" if caller.trusted and brake["reason"] else ""
    release = '`holdfast brake release --reason "…"` ends that' if caller.trusted else "an operator has to release it"
    held = "neither surplus workers nor claims whose time ran out are ended"
    return f"{tripped}{reason}: {held}; {release}."


def _tenant_braked(own: dict[str, Any], now: float, caller: Caller) -> str:
    tripped = (
        f"The brake of tenant {own['tenant']} has been tripped {_since(own['tripped_at'].timestamp(), now)} ({own['reason']})"
    )
    release = f'`holdfast brake release --tenant {own["tenant"]} --reason "…"` ends that'
    release = release if caller.trusted else "an operator has to release it"
    held = "its leases do not end, its parked workers are not scaled down, and its longest durations end only so many claims in ten minutes"
    return f"{tripped}: {held}; {release}."


async def explain_claim(context: Context, caller: Caller, id_: str) -> tuple[list[str], dict[str, Any], str]:
    found = await context.store.claims.get([id_])
    if not found or not caller.sees(found[0].tenant):
        raise await context.unknown_claim(id_, caller)
    claim, now = found[0], await context.store.now()
    events, _ = await context.store.history.events(after=None, limit=200, claim=id_)
    loads = {load.pool.id: load for load in await context.store.pools.loads()}
    sentences = [_state_of(claim, now)]
    if claim.priority_reason is not None:
        sentences.append(f"Its {claim.priority_reason}.")
    if claim.state == "waiting":
        sentences.append(f"It waits because {claim.reason}.")
        if load := loads.get(claim.pool_id):
            sentences += pool_sentences(load, trusted=caller.trusted)
        if claim.deadline_at is not None:
            sentences.append(f"Without a worker it is refused {_ahead(claim.deadline_at, now)}.")
    if claim.waited is not None:
        sentences.append(f"It waited {text(claim.waited)} for a worker.")
    if claim.active_at is not None and claim.assigned_at is not None:
        took = claim.active_at - claim.assigned_at
        slow = " (slow: protection, activation and acknowledgement happen here)" if took > SLOW_HANDOVER else ""
        sentences.append(f"The hand-over to {claim.worker} took {text(took)}{slow}.")
    if claim.labels:
        labelled = ", ".join(f"{name}={value}" if value else name for name, value in sorted(claim.labels.items()))
        sentences.append(f"Its labels are {labelled}.")
    if claim.attempts > 1:
        sentences.append(f"It was given to {claim.attempts} workers in turn; the history below says why.")
    if claim.state == "active":
        sentences += _active(claim, now)
    sentences += [_sentence(event, shows_worker(event, caller)) for event in events]
    facts = {
        "state": claim.state,
        "outcome": claim.outcome,
        # P1, P3: a holder does not see its worker before the claim is active.
        "worker": claim.worker if caller.trusted or claim.active_at is not None else None,
        "attempts": claim.attempts,
    }
    return sentences, facts, claim.tenant


def _state_of(claim: Claim, now: float) -> str:
    subject = f"Claim {claim.id} of tenant {claim.tenant} on pool {claim.pool}"
    if claim.state == "ended":
        assert claim.ended_at is not None
        code = "" if claim.exit_code is None else f", exit code {claim.exit_code}"
        when = f"{text(max(0, now - claim.ended_at))} ago, at {_utc(claim.ended_at)}"
        return f"{subject} ended {when}: {claim.outcome}{code} ({claim.reason})."
    since = {"waiting": claim.queued_at, "assigned": claim.assigned_at, "active": claim.active_at}[claim.state]
    return f"{subject} has been {claim.state} {_since(since or now, now)}."


def _active(claim: Claim, now: float) -> list[str]:
    sentences = []
    if claim.lease_until is not None:
        sentences.append(f"Its lease ends {_ahead(claim.lease_until, now)} unless its holder renews it.")
    if claim.max_until is not None:
        sentences.append(f"Its longest duration ends it {_ahead(claim.max_until, now)}.")
    if claim.protected is False:
        sentences.append("Its worker is not protected from disruption.")
    return sentences


async def explain_worker(context: Context, id_: str) -> tuple[list[str], dict[str, Any], str | None]:
    worker = await context.store.workers.get(id_)
    if worker is None:
        raise await context.unknown_worker(id_)
    now = await context.store.now()
    events, _ = await context.store.history.events(after=None, limit=200, worker=id_)
    sentences = [f"Worker {id_} of pool {worker.pool} has been {worker.state} {_since(worker.state_since, now)}."]
    if worker.claim:
        sentences.append(f"It is held by claim {worker.claim} of tenant {worker.tenant}: nothing that Holdfast does ends it.")
    if worker.state == "parked" and worker.park_ttl is not None and worker.parked_since is not None:
        left = max(0, worker.parked_since + worker.park_ttl - now)
        sentences.append(f"It is kept for tenant {worker.tenant} for another {text(left)}, unless that tenant claims it before.")
        if not worker.ready:
            sentences.append("Its agent has not reported its reset yet, so it cannot be given out.")
    if worker.reason:
        sentences.append(f"It retires because {worker.reason}.")
    if worker.unconfirmed_since is not None:
        since = _since(worker.unconfirmed_since, now)
        sentences.append(
            f"It has been unconfirmed {since}: its agent has not reported since the database lost commits, so it is neither given"
            " out nor ended; `holdfast recover` shows what an operator can do."
        )
    elif worker.suspect_since is not None:
        since = _since(worker.suspect_since, now)
        sentences.append(f"It has been suspect {since}: its agent is silent, so it gets no new claim.")
    if worker.terminating:
        sentences.append("Its pod is being ended from outside.")
    if not worker.schedulable:
        sentences.append("Its node is cordoned.")
    sentences += _last_lines(await context.store.logs.get(id_), now)
    sentences += [_sentence(event) for event in events]
    facts = {
        "state": worker.state,
        "pool": worker.pool,
        "claim": worker.claim,
        "uid": worker.pod_uid,
    }
    return sentences, facts, worker.tenant


async def explain_pool(context: Context, name: str) -> tuple[list[str], dict[str, Any]]:
    # A name can be used again as soon as its pool is being deleted, so there may be several. The live pool comes first.
    found = sorted((load for load in await context.store.pools.loads() if load.pool.name == name), key=_live_first)
    if not found:
        raise await context.unknown_pool(name)
    load, *earlier = found
    events, _ = await context.store.history.events(after=None, limit=15, pool=name, newest=True)
    pool = load.pool
    sentences = [
        f"Pool {name} ({pool.spec.mode}) is {pool.state}: {load.free_ready} of {pool.spec.max} workers free, "
        f"{load.spawning} starting, {load.held} held, {load.parked} parked, {load.retiring} retiring; it keeps {pool.spec.warm} warm."
    ]
    recovery = await context.store.recovery.state()
    if recovery.recovering:
        why = f" ({recovery.reason})" if recovery.reason else ""
        sentences.append(f"The database lost commits{why}: nothing is given out, spawned or ended until pods have been compared.")
    sentences += pool_sentences(load, trusted=True)
    if pool.troubles is not None:
        sentences += _last_lines(await context.store.logs.newest(pool.id), load.now)
    for old in earlier:
        held = "1 of its workers is held" if old.held == 1 else f"{old.held} of its workers are held"
        sentences.append(f"An earlier pool of this name ({old.pool.id}) is still draining: {held}.")
    sentences += [_sentence(event) for event in events]
    facts = {
        "state": pool.state,
        "stopping": load.stopping,
        "waiting": load.waiting,
        "servable": load.servable,
        "free": load.free_ready,
        "revision": pool.revision,
    }
    return sentences, facts


def _last_lines(log: WorkerLog | None, now: float) -> list[str]:
    if log is None or not (lines := log.last_lines(LAST_LINES)):
        return []
    ago = text(max(0, now - log.at))
    return [
        f"The last lines of worker {log.worker}, sent {ago} ago (`holdfast logs {log.worker}` shows more):",
        *(f"  {x}" for x in lines),
    ]


def _live_first(load: PoolLoad) -> tuple[bool, float]:
    return load.pool.state != "live", -load.pool.created_at


def pool_sentences(load: PoolLoad, *, trusted: bool) -> list[str]:
    """Returns what there is to say about a pool. Only a trusted caller sees the texts of operators, of the cluster and of hooks,
    which may be about other tenants or about the template."""
    pool, sentences = load.pool, []
    present = load.spawning + load.warm + load.held + load.parked + load.retiring
    gives = pool.state == "live" and not load.stopping
    if load.stopping:
        sentences.append(
            "This installation is being stopped with its workers: nothing is given out or spawned, free workers go, busy ones finish."
        )
    if pool.state == "draining":
        sentences.append("The pool is being deleted: free workers go, busy ones finish, and claims that wait are refused.")
    if load.waiting:
        waits = "1 claim waits" if load.waiting == 1 else f"{load.waiting} claims wait"
        sentences.append(f"{waits}, the oldest {_since(load.now - load.oldest_wait, load.now)}.")
    if (capped := load.waiting - load.servable) > 0:
        capped_tenants = (
            "1 of them belongs to a tenant that holds its"
            if capped == 1
            else f"{capped} of them belong to tenants that hold their"
        )
        sentences.append(f"{capped_tenants} cap.")
    if gives and load.servable and load.free_ready and load.oldest_wait > 2:
        where = "see `holdfast get duties`" if trusted else "tell an operator"
        sentences.append(f"Workers are free although claims wait: matching is at fault, {where}.")
    if gives and load.waiting and present >= pool.spec.max:
        sentences.append(f"The pool is at its max of {pool.spec.max} workers, counting those that are still ending.")
    if pool.frozen is not None:
        why = f" ({pool.frozen})" if trusted else ""
        thaw = f"`holdfast thaw {pool.name}` ends that" if trusted else "an operator has to thaw it"
        sentences.append(f"The pool is frozen{why}: nothing is spawned and nothing is ended; {thaw}.")
    if pool.trouble is not None:
        failed = "The last start" if pool.failures == 1 else f"The last {pool.failures} starts"
        sentences.append(f"{failed} failed: {pool.trouble}." if trusted else f"{failed} failed; operators see why.")
    if pool.backoff_until is not None and pool.backoff_until > load.now:
        sentences.append(f"The next start is tried {_ahead(pool.backoff_until, load.now)}.")
    if pool.activation_trouble is not None:
        sentences.append(_activation_trouble(pool, load.now, trusted))
    if load.outdated_warm:
        sentences.append(f"A rollout to revision {pool.revision} is under way; busy workers finish first.")
    return sentences


def _activation_trouble(pool: Pool, now: float, trusted: bool) -> str:
    claims = "1 claim" if pool.claims_failing == 1 else f"{pool.claims_failing} claims"
    fails = f"Activation failed for {claims} since the last success" + (f": {pool.activation_trouble}." if trusted else ".")
    if not pool.activations_fail:
        return f"{fails} Other claims are served meanwhile."
    due = "" if pool.activation_retry_at is None else f" The next claim is tried {_ahead(pool.activation_retry_at, now)}."
    return f"{fails} So claims are tried one at a time until one succeeds.{due}"


def shows_worker(event: Event, caller: Caller) -> bool:
    """Returns whether the caller may see the worker of an event. A tenant sees it from the moment at which its claim is active."""
    return caller.trusted or event.kind in SHOWS_WORKER


def _sentence(event: Event, worker: bool = True) -> str:
    also = f" → {event.also}" if event.also else ""
    about = " ".join(part for part in (event.worker if worker else None, event.claim) if part)
    outcome = f" [{event.data['outcome']}]" if event.data and event.data.get("outcome") else ""
    reason = f": {event.reason}" if event.reason else ""
    by = f" (by {event.actor.name}, {event.actor.role} {event.actor.id})" if event.actor else ""
    return f"{_utc(event.at, 'milliseconds')}  {event.kind}{also}{outcome} {about}{reason}".rstrip() + by


def _since(then: float, now: float) -> str:
    return f"for {text(max(0, now - then))}, since {_utc(then)}"


def _ahead(then: float, now: float) -> str:
    return f"in {text(max(0, then - now))}, at {_utc(then)}"


def _utc(at: float, precision: str = "seconds") -> str:
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(" ", precision) + " UTC"
