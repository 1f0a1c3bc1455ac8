"""Each check of `doctor` fails on a violation that the test makes, and passes without it."""

import pytest

from holdfast.postgres.report import CHECKS
from holdfast.postgres.store import PostgresStore
from postgres.store_steps import active, ask, make_pool, make_warm

pytestmark = pytest.mark.usefixtures("durable")

HOUR = "interval '1 hour'"

# Violations, made by SQL that the product never sends, by the check that must report them.
PLANTED: dict[str, list[str]] = {
    "one holder: a live claim and its worker point at each other": [
        "UPDATE holdfast.worker SET fence = fence + 1 WHERE state = 'held'"
    ],
    "a worker serves one tenant only": [
        "INSERT INTO holdfast.event (at, kind, worker_id, tenant) "
        "SELECT now(), 'claim.active', 'w-x', t FROM unnest(ARRAY['a', 'b']) AS t"
    ],
    "no worker is ending under a live claim": [
        "UPDATE holdfast.worker SET state = 'retiring', claim_id = NULL WHERE state = 'held'"
    ],
    "busy workers carry their protection": [
        """UPDATE holdfast.pool SET spec = jsonb_set(spec, '{protection,mode}', '"claim"')""",
        f"UPDATE holdfast.claim SET active_at = now() - {HOUR}",
    ],
    "no claim is past its longest duration": [f"UPDATE holdfast.claim SET max_heard = holdfast.heard() - {HOUR}"],
    "no worker is stuck while it starts or ends": [
        f"UPDATE holdfast.worker SET state = 'retiring', state_since = now() - {HOUR} WHERE state = 'warm'"
    ],
    "no parked worker outlives its TTL": [
        f"UPDATE holdfast.worker SET state = 'parked', tenant = 'a', parked_since = now() - {HOUR}, park_ttl = interval '1 min', "
        f"parked_heard = holdfast.heard() - {HOUR} WHERE state = 'warm'"
    ],
    "every duty succeeded lately": [
        "INSERT INTO holdfast.replica (id, pid, host, url, version, functions, started_at, seen_at) "
        f"VALUES ('r-1', 1, 'h', 'u:1', 'v', 'f', now() - {HOUR}, now())"
    ],
    "every statement has a time limit": ["SELECT set_config('lock_timeout', '0', false)"],
    "no tenant's brake is tripped": ["INSERT INTO holdfast.tenant_brake VALUES ('acme', now(), 'planted')"],
    "the brake is released": ["UPDATE holdfast.installation SET brake_tripped_at = now(), brake_reason = 'planted'"],
    "no recovery is under way": ["UPDATE holdfast.installation SET recovering_since = now(), recovery_reason = 'planted'"],
    "no worker is unconfirmed": [f"UPDATE holdfast.worker SET unconfirmed_since = now() - {HOUR} WHERE state = 'held'"],
    "an acknowledged commit survives": ["SELECT set_config('synchronous_commit', 'off', false)"],
    "activations succeed": ["UPDATE holdfast.pool SET activation_failing = ARRAY['a', 'b', 'c'], activation_trouble = 'planted'"],
    "no claim waits past its deadline": [
        f"UPDATE holdfast.claim SET deadline_heard = holdfast.heard() - {HOUR} WHERE state = 'waiting'"
    ],
}


def test_every_check_is_planted_here() -> None:
    assert set(PLANTED) == {name for _, name, _, _ in CHECKS}


@pytest.mark.parametrize("name", sorted(PLANTED))
async def test_a_planted_violation_is_found_and_nothing_else(name: str, lone_store: PostgresStore) -> None:
    store = lone_store  # so that the check uses the session with the changed setting
    pool = await make_pool(store)
    await make_warm(store, pool, 2)
    await active(store, pool)
    await store.claims.match(pool.id, [ask()], 0)
    assert [check for check in await store.check() if not check["ok"]] == []
    for statement in PLANTED[name]:
        await store.db.rows(statement)
    broken = {check["name"]: check for check in await store.check() if not check["ok"]}
    assert name in broken
    assert broken[name]["detail"]
    assert broken[name]["advice"]
