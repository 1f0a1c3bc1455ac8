"""The SQL follows the state tables of the model: other changes are refused, and each change of state is one event."""

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.model.claim import CLAIM
from holdfast.model.effect import Done
from holdfast.model.pool import Pool
from holdfast.model.worker import WORKER
from holdfast.ports.recovery import Adoption
from holdfast.postgres.store import PostgresStore
from postgres.store_steps import BARE, JOB, SESSION, acknowledge, agent_report, ask, make_pool, match, name
from postgres.store_tables import broken

FENCE = 1 << 40

Call = Callable[[PostgresStore, Pool, str], Awaitable[bool]]


async def put_worker(store: PostgresStore, pool: Pool, state: str) -> str:
    """Makes a worker in this state with everything that the state requires. A held worker has an assigned, delivered claim."""
    worker = name("w")
    await store.db.rows(
        """INSERT INTO holdfast.worker (id, pool_id, state, revision, created_at, state_since, state_heard, pod_uid, ready,
               claim_id, held_from, tenant, fence, parked_since, parked_heard, park_ttl)
           SELECT $1, $2, $3, $4, t, t, h, 'uid-' || $1, $3 <> 'spawning',
               CASE WHEN $3 = 'held' THEN 'c-of-' || $1 END, CASE WHEN $3 = 'held' THEN 'warm' END,
               CASE WHEN $3 IN ('held', 'parked') THEN 'acme' END, CASE WHEN $3 IN ('held', 'parked') THEN $5::bigint END,
               CASE WHEN $3 = 'parked' THEN t END, CASE WHEN $3 = 'parked' THEN h END,
               CASE WHEN $3 = 'parked' THEN interval '1 min' END
           FROM (SELECT holdfast.now() AS t, holdfast.heard() AS h) c""",
        worker,
        pool.id,
        state,
        pool.revision,
        FENCE,
    )
    if state == "held":
        await put_claim(store, pool, "assigned", f"c-of-{worker}", worker)
    return worker


async def put_claim(store: PostgresStore, pool: Pool, state: str, id_: str | None = None, worker: str | None = None) -> str:
    """Makes a claim in this state. A live claim holds its worker."""
    claim = id_ or name("c")
    if state in ("assigned", "active") and worker is None:
        worker = await put_worker(store, pool, "held")
        await store.db.rows("DELETE FROM holdfast.claim WHERE worker_id = $1", worker)
        await store.db.rows("UPDATE holdfast.worker SET claim_id = $2 WHERE id = $1", worker, claim)
    await store.db.rows(
        """INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, tag, worker_id, fence, outcome, retry,
               max_duration, lease, max_heard, lease_heard, progress_heard, created_at, deadline_heard, offered, delivered)
           SELECT $1, $2, 'acme', 'h', '{}', $3, 0, $4, CASE WHEN $4::text IS NOT NULL THEN $5::bigint END,
               CASE WHEN $3 = 'ended' THEN 'released' END, 'lost', '1 h', '1 min',
               CASE WHEN $3 = 'active' THEN h + interval '1 h' END,
               CASE WHEN $3 = 'active' THEN h + interval '1 min' END, h, t, h + interval '1 h', false, true
           FROM (SELECT holdfast.now() AS t, holdfast.heard() AS h) c""",
        claim,
        pool.id,
        state,
        worker,
        FENCE,
    )
    return claim


async def picture(store: PostgresStore) -> dict[str, Any]:
    """Returns all claims and workers as they are."""
    rows = await store.db.rows(
        "SELECT id, to_jsonb(c) AS j FROM holdfast.claim c UNION ALL SELECT id, to_jsonb(w) FROM holdfast.worker w"
    )
    return {row["id"]: row["j"] for row in rows}


async def events(store: PostgresStore, id_: str) -> list[str]:
    """Returns the transitions of a worker or claim in the history."""
    rows = await store.db.rows("SELECT kind, also FROM holdfast.event WHERE $1 IN (worker_id, claim_id) ORDER BY id", id_)
    noun = "worker." if id_.startswith("w-") else "claim."
    return [kind for row in rows for kind in row if kind is not None and kind.startswith(noun)]


async def done(outcome: Awaitable[Any]) -> bool:
    return await outcome == Done()


async def warm(store: PostgresStore, pool: Pool, worker: str) -> bool:
    return await done(store.workers.warm(worker, 1, None))


async def report_idle(store: PostgresStore, pool: Pool, worker: str) -> bool:
    before = await store.db.value("SELECT state FROM holdfast.worker WHERE id = $1", worker)
    await store.workers.report(agent_report(worker))
    return await store.db.value("SELECT state FROM holdfast.worker WHERE id = $1", worker) != before


async def hold(store: PostgresStore, pool: Pool, worker: str) -> bool:
    return any(pair.worker == worker for pair in await match(store, pool, ask()))


async def condemn(store: PostgresStore, pool: Pool, worker: str) -> bool:
    return await done(store.workers.condemn(worker, None, "not wanted", counted=True))


async def disown(store: PostgresStore, pool: Pool, worker: str) -> bool:
    before = await store.db.value("SELECT state FROM holdfast.worker WHERE id = $1", worker)
    await store.db.rows("SELECT @fn.retire_spent($1)", worker)
    return await store.db.value("SELECT state FROM holdfast.worker WHERE id = $1", worker) != before


async def bury(store: PostgresStore, pool: Pool, worker: str) -> bool:
    return await done(store.workers.bury(worker, "its pod is gone"))


async def unspawn(store: PostgresStore, pool: Pool, worker: str) -> bool:
    return await done(store.workers.unspawn([worker], "quota", "no room", 1.0))


async def adopt_free(store: PostgresStore, pool: Pool, worker: str) -> bool:
    return await done(store.recovery.adopt_free(worker, f"uid-{worker}", pool.id, pool.name, pool.revision, spent=False))


async def rehold(store: PostgresStore, pool: Pool, worker: str) -> bool:
    adoption = Adoption(
        worker=worker,
        uid=f"uid-{worker}",
        pool=pool.name,
        pool_id=pool.id,
        revision=pool.revision,
        claim=name("c"),
        tenant="acme",
        fence=FENCE + 1,
    )
    await store.recovery.begin("restored", 0)
    return await done(store.recovery.adopt(adoption))


WORKER_CALLS: list[tuple[str, Call]] = [
    ("warm", warm),
    ("warm", report_idle),
    ("hold", hold),
    ("condemn", condemn),
    ("disown", disown),
    ("bury", bury),
    ("unspawn", unspawn),
    ("adopt_free", adopt_free),
    ("rehold", rehold),
]


@pytest.mark.parametrize(("transition", "call"), WORKER_CALLS, ids=[f"{t} by {c.__name__}" for t, c in WORKER_CALLS])
async def test_a_worker_changes_only_as_its_table_allows(store: PostgresStore, transition: str, call: Call) -> None:
    table = WORKER[transition]
    wrong = []
    for state in WORKER.states:
        pool = await make_pool(store, SESSION, f"pool-{state}")
        worker = await put_worker(store, pool, state)
        before = await picture(store)
        changed = await call(store, pool, worker)
        now = (await store.db.row("SELECT state FROM holdfast.worker WHERE id = $1", worker))["state"]
        kinds = await events(store, worker)
        if state in table.sources:
            right = changed and now == table.target and kinds == [table.event]
        else:
            after = await picture(store)
            right = not changed and kinds == [] and all(after[id_] == row for id_, row in before.items() if id_ == worker)
        if not right:
            wrong.append((state, now, kinds))
    assert wrong == [], f"{transition}: from {table.sources} to {table.target} only, with {table.event} once"


async def activate(store: PostgresStore, pool: Pool, claim: str) -> bool:
    worker = await store.db.value("SELECT worker_id FROM holdfast.claim WHERE id = $1", claim)
    before = await store.db.value("SELECT state FROM holdfast.claim WHERE id = $1", claim)
    acknowledged = await acknowledge(store, worker or "w-none", FENCE, None)
    assert (acknowledged == claim) == (before in ("assigned", "active")), "repeated, it is accepted again"
    return before != "active" and acknowledged is not None


async def offer(store: PostgresStore, pool: Pool, claim: str) -> bool:
    return bool(await store.claims.offer([(claim, FENCE, True)]))


async def assign(store: PostgresStore, pool: Pool, claim: str) -> bool:
    await put_worker(store, pool, "warm")
    return any(pair.claim == claim for pair in await match(store, pool))


async def requeue(store: PostgresStore, pool: Pool, claim: str) -> bool:
    return await done(store.claims.requeue(claim, FENCE, keep_worker=True, reason="unusable"))


async def end(store: PostgresStore, pool: Pool, claim: str) -> bool:
    everything = CLAIM.states
    ended = await store.claims.end(claim, outcome="cancelled", how="cancel", reason="enough", states=everything)
    return ended.effect == Done()


CLAIM_CALLS: list[tuple[str, Call]] = [
    ("assign", assign),
    ("activate", activate),
    ("activate", offer),
    ("requeue", requeue),
    ("end", end),
]


@pytest.mark.parametrize(("transition", "call"), CLAIM_CALLS, ids=[f"{t} by {c.__name__}" for t, c in CLAIM_CALLS])
async def test_a_claim_changes_only_as_its_table_allows(store: PostgresStore, transition: str, call: Call) -> None:
    table = CLAIM[transition]
    for state in CLAIM.states:
        pool = await make_pool(store, BARE if call is offer else JOB, f"pool-{state}")
        claim = await put_claim(store, pool, state)
        before = await picture(store)
        changed = await call(store, pool, claim)
        assert changed == (state in table.sources), state
        kinds = await events(store, claim)
        assert kinds == ([table.event] if changed else []), state
        after = await picture(store)
        if changed:
            assert await store.db.value("SELECT state FROM holdfast.claim WHERE id = $1", claim) == table.target
        else:
            assert {id_: after[id_] for id_ in before} == before, f"refused from {state}, and something changed"
        assert await broken(store) == []


async def test_only_a_claim_that_asked_for_it_is_retried(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    claim = await put_claim(store, pool, "active")

    async def again(*, dead: bool = True) -> bool:
        return await done(store.claims.requeue(claim, FENCE, dead=dead, reason="it died"))

    assert not await again(dead=False), "only after proof of death"
    await store.db.rows("UPDATE holdfast.claim SET retry = NULL WHERE id = $1", claim)
    assert not await again()
    await store.db.rows("UPDATE holdfast.claim SET retry = 'lost', losses = 2 WHERE id = $1", claim)
    assert not await again()
    await store.db.rows("UPDATE holdfast.claim SET losses = 1 WHERE id = $1", claim)
    assert await again()
    assert await events(store, claim) == ["claim.retried"]


VIOLATIONS = {
    "two live claims on one worker": "UPDATE holdfast.claim SET worker_id = 'w-1' WHERE id = 'c-2'",
    "two workers for one claim": "UPDATE holdfast.worker SET claim_id = 'c-1' WHERE id = 'w-2'",
    "one key for two claims": "UPDATE holdfast.claim SET key = 'k', key_live = true",
    "held without a claim": "UPDATE holdfast.worker SET claim_id = NULL WHERE id = 'w-1'",
    "free under a claim": "UPDATE holdfast.worker SET state = 'warm', tenant = NULL WHERE id = 'w-1'",
    "warm for a tenant": "UPDATE holdfast.worker SET state = 'warm', claim_id = NULL WHERE id = 'w-1'",
    "parked for no tenant": "UPDATE holdfast.worker SET state = 'parked', claim_id = NULL, tenant = NULL WHERE id = 'w-1'",
    "parked since never": "UPDATE holdfast.worker SET state = 'parked', claim_id = NULL WHERE id = 'w-1'",
    "an unknown worker's state": "UPDATE holdfast.worker SET state = 'lost' WHERE id = 'w-1'",
    "an unknown claim's state": "UPDATE holdfast.claim SET state = 'lost' WHERE id = 'c-1'",
    "live without a fence": "UPDATE holdfast.claim SET fence = NULL WHERE id = 'c-1'",
    "live without a worker": "UPDATE holdfast.claim SET worker_id = NULL WHERE id = 'c-1'",
    "active without a ceiling": "UPDATE holdfast.claim SET max_heard = NULL WHERE id = 'c-1'",
    "ended without an outcome": "UPDATE holdfast.claim SET state = 'ended' WHERE id = 'c-1'",
    "an outcome before the end": "UPDATE holdfast.claim SET outcome = 'lost' WHERE id = 'c-1'",
    "an unknown outcome": "UPDATE holdfast.claim SET state = 'ended', outcome = 'fine' WHERE id = 'c-1'",
    "an epoch beyond a fence": "UPDATE holdfast.installation SET epoch = 8192",
    "a second installation": "INSERT INTO holdfast.installation (install_id) VALUES ('i-2')",
    "a second live pool of a name": "INSERT INTO holdfast.pool (id, name, spec, revision, created_at, updated_at)"
                                    " SELECT 'p-2', name, spec, revision, now(), now() FROM holdfast.pool",
}  # fmt: skip


async def test_the_tables_themselves_refuse_what_must_not_be(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    for number in (1, 2):
        await store.db.rows(
            "INSERT INTO holdfast.worker (id, pool_id, state, revision, created_at, state_since, state_heard, claim_id,"
            " tenant, fence)"
            " SELECT 'w-' || $1, $2, 'held', 'r', t, t, t, 'c-' || $1, 'acme', 1::bigint << 40 FROM now() t",
            str(number),
            pool.id,
        )
        await put_claim(store, pool, "active", f"c-{number}", f"w-{number}")
    let_in = []
    for what, statement in VIOLATIONS.items():
        try:
            await store.db.rows(statement)
            let_in.append(what)
        except asyncpg.IntegrityConstraintViolationError:
            continue
    assert let_in == []
    assert await broken(store) == []
