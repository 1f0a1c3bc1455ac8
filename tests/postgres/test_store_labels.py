"""Labels are stored with their claim, cost a claim without labels nothing, and are found by their index."""

from holdfast.model.label import LabelFilter, parse_filter
from holdfast.postgres.claims import FIND
from holdfast.postgres.conditions import Conditions, filter_labels
from holdfast.postgres.store import PostgresStore
from postgres.store_steps import ask, lone_active, make_pool, match


async def found(store: PostgresStore, text: str) -> list[str]:
    claims, _ = await store.claims.find(limit=100, labels=parse_filter(text))
    return [claim.id for claim in claims]


async def test_labels_are_stored_with_the_claim_and_read_with_it(store: PostgresStore) -> None:
    pool = await make_pool(store)
    labelled, plain = ask(labels={"team": "web", "ci": ""}), ask()
    await match(store, pool, labelled, plain)
    by_id = {claim.id: claim.labels for claim in await store.claims.get([labelled.id, plain.id])}
    assert by_id == {labelled.id: {"team": "web", "ci": ""}, plain.id: {}}
    assert await found(store, "team=web,ci") == [labelled.id]
    assert await found(store, "team=data") == []
    claims, _ = await store.claims.find(limit=100, labels=LabelFilter())
    assert len(claims) == 2, "a filter without labels excludes nothing"


async def test_every_step_of_a_claim_returns_its_labels(store: PostgresStore) -> None:
    pair = await lone_active(store, (await make_pool(store, called="other")).spec, ask(labels={"team": "web"}))
    ended = await store.claims.end(pair.claim, outcome="released", how="release", reason="", states=("active",))
    assert ended.claim is not None
    assert ended.claim.labels == {"team": "web"}


async def test_a_claim_without_labels_has_none_stored(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await match(store, pool, ask(), ask(labels=None))
    rows = await store.db.rows("SELECT labels IS NULL AS none FROM holdfast.claim")
    assert [row["none"] for row in rows] == [True, True], "so it has no entry in the index, which leaves out NULL"


async def test_a_rare_label_is_found_without_reading_all_claims(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await store.db.rows(
        """INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, tag, outcome, max_duration, created_at,
                                       deadline_heard, labels)
           SELECT 'c-' || n, $1, 'acme', '', '{}', 'ended', 0, 'completed', '1 h', holdfast.now(), holdfast.now(),
                  jsonb_build_object('team', 't-' || n % 5000) FROM generate_series(1, 20000) n""",
        pool.id,
    )
    await store.db.rows("VACUUM ANALYZE holdfast.claim")
    conditions = Conditions(100)
    filter_labels(conditions, parse_filter("team=t-7"))
    sql = FIND.replace("@where", conditions.where)
    plan = "\n".join(row[0] for row in await store.db.rows(f"EXPLAIN {sql}", *conditions.args))
    assert "claim_labels" in plan
    assert len(await found(store, "team=t-7")) == 4
