"""A tenant lets its claims expire to trip the brake. It brakes only itself, and its longest durations go on (P4, P7)."""

from typing import Any

from holdfast.duties.deadlines import FIRST_STALL
from holdfast.model.brake import BrakeLimits
from holdfast.model.effect import Done, Skipped
from holdfast.model.pool import Pool
from holdfast.ports.store import NewClaim
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import SESSION, active, ask, end, make_pool, make_warm, match
from postgres.store_tables import column

BRAKED = Skipped("braked")


async def expired(store: PostgresStore, clock: Clock, pool: Pool, *new: NewClaim, renewed: bool = False) -> list[str]:
    """Makes active claims whose leases of 2 s have expired, after one renewal each if `renewed`."""
    await make_warm(store, pool, len(new))
    pairs = await match(store, pool, *new)
    assert len(pairs) == len(new)
    if renewed:
        await clock.live(1)
        for pair in pairs:
            assert await store.claims.renew(pair.claim, pair.fence) is not None
    await clock.live(3)
    return [pair.claim for pair in pairs]


def leases(tenant: str, count: int, *, chosen: bool = False) -> list[NewClaim]:
    return [ask(tenant, lease=2.0, lease_chosen=chosen) for _ in range(count)]


async def due(store: PostgresStore, limit: int = 100) -> list[str]:
    return [each.claim for each in await store.claims.due(limit, FIRST_STALL)]


async def tripped(store: PostgresStore) -> tuple[bool, list[str]]:
    brake = await store.fleet.brake()
    return brake["tripped"], [each["tenant"] for each in brake["tenants"]]


async def test_sixty_claims_with_a_lease_of_their_own_trip_nothing(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    claims = await expired(store, clock, pool, *leases("evil", 60, chosen=True))
    assert [await end(store, claim, "lease") for claim in claims] == [Done()] * 60
    assert await tripped(store) == (False, [])
    assert await store.db.value("SELECT count(*) FROM holdfast.ending") == 0


async def test_a_tenant_that_renews_once_and_stops_brakes_itself_and_no_other_tenant(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    claims = await expired(store, clock, pool, *leases("evil", 60, chosen=True), renewed=True)
    answers = [await end(store, claim, "lease") for claim in claims]
    assert (answers.count(Done()), answers.count(BRAKED)) == (25, 35), "half of 50"
    assert await tripped(store) == (False, ["evil"])
    [claim] = await expired(store, clock, pool, *leases("good", 1))
    assert await end(store, claim, "lease") == Done()
    reasons = await column(store, "SELECT tenant || ': ' || reason FROM holdfast.event WHERE kind = 'brake.tripped'")
    assert reasons == ["evil: 25 claims of tenant evil were ended in ten minutes"]


def ceilings(tenant: str, count: int, **asked: Any) -> list[NewClaim]:
    return [ask(tenant, max_duration=2.0, **asked) for _ in range(count)]


async def ended(store: PostgresStore, claims: list[str], how: str = "max_duration") -> int:
    """Tries to end the claims. Returns how many of them ended; the brake stopped all later ones."""
    answers = [await end(store, claim, how) for claim in claims]
    count = answers.count(Done())
    assert answers == [Done()] * count + [BRAKED] * (len(claims) - count)
    return count


async def test_a_tenant_that_owns_all_claims_does_not_lose_them_at_once_and_its_brake_trips(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=2, share=0.0, tenant_share=0.5))
    late = await expired(store, clock, pool, *ceilings("whole", 5))
    assert await ended(store, late) == 2, "no more than the fleet's brake allows"
    assert await tripped(store) == (False, ["whole"])
    assert (await store.fleet.brake())["claims_ended"] == 2, "every ending is counted"
    reasons = await column(store, "SELECT reason FROM holdfast.event WHERE kind = 'brake.tripped' AND tenant = 'whole'")
    assert reasons == ["2 claims of tenant whole were ended in ten minutes"], "one event, although three ends were stopped"


async def test_longest_durations_of_a_braked_tenant_wait_for_room_and_go_on_without_a_person(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=4, share=0.0))
    late = await expired(store, clock, pool, *ceilings("evil", 10))
    assert await ended(store, late) == 4
    await clock.jump(599)
    assert await ended(store, late[4:]) == 0
    await clock.jump(1)
    assert await ended(store, late[4:]) == 4
    await clock.jump(600)
    assert await ended(store, late[8:]) == 2
    assert await tripped(store) == (False, ["evil"]), "only a person releases it"
    assert len(await column(store, "SELECT id FROM holdfast.event WHERE kind = 'brake.tripped'")) == 1


async def test_a_braked_tenant_still_loses_its_workers_at_the_longest_duration(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=4, share=0.0))
    lapsed = await expired(store, clock, pool, *leases("evil", 3))
    assert await ended(store, lapsed, "lease") == 2
    late = await expired(store, clock, pool, *ceilings("evil", 3))
    assert await ended(store, late) == 2, "its leases used a part of the ten minutes"
    assert await tripped(store) == (False, ["evil"])
    await clock.jump(600)
    assert await ended(store, late[2:]) == 1
    assert await end(store, lapsed[2], "lease") == BRAKED


async def test_a_claim_of_a_braked_tenant_whose_lease_ran_out_as_well_ends_at_its_longest_duration(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=6, share=0.0))
    lapsed = await expired(store, clock, pool, *(ask("evil", lease=2.0, max_duration=6.0) for _ in range(4)))
    assert await ended(store, lapsed, "lease") == 3
    assert await due(store) == []
    await clock.live(3)
    assert await due(store) == lapsed[3:]
    assert await end(store, lapsed[3], "lease") == Done()


async def test_the_waiting_claims_of_braked_tenants_hide_no_claim_of_another_one(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=6, share=0.0, tenant_share=0.1))
    late = await expired(store, clock, pool, *ceilings("evil", 9))
    assert await ended(store, late) == 6
    lapsed = await expired(store, clock, pool, *leases("worse", 4))
    assert await ended(store, lapsed, "lease") == 1
    assert await tripped(store) == (False, ["evil", "worse"])
    good = await expired(store, clock, pool, *ceilings("good", 1), *leases("good", 1), *leases("worse", 1, chosen=True))
    found = await due(store, limit=2)
    assert set(found) == {*late[6:8], *good}, "two of evil wait, and all others are found"
    assert await ended(store, good[:1]) == 1


async def test_longest_durations_of_several_tenants_trip_the_fleets_brake_and_those_of_one_do_not(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=4, share=0.0))
    assert await ended(store, await expired(store, clock, pool, *ceilings("evil", 9))) == 4
    assert await tripped(store) == (False, ["evil"])
    others = [new for n in range(3) for new in ceilings(f"tenant-{n}", 1)]
    assert await ended(store, await expired(store, clock, pool, *others)) == 2, "evil counts for no more than its share"
    assert await tripped(store) == (True, ["evil"])


async def test_a_longest_duration_that_the_request_named_is_not_counted_even_if_the_fleet_is_braked(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=0, share=0.0))
    [own, pools] = await expired(store, clock, pool, ask(max_duration=2.0, max_chosen=True), ask(max_duration=2.0))
    assert await end(store, pools, "max_duration") == BRAKED
    assert await end(store, own, "max_duration") == Done()


async def test_a_tenant_that_gives_its_claims_back_does_not_make_its_endings_too_many_for_the_fleet(store: PostgresStore) -> None:
    """A quarter of what lives may end. The tenant uses its share of many claims, and then releases the rest."""
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=4, share=0.25))
    claims = await expired(store, clock, pool, *leases("evil", 80))
    answers = [await end(store, claim, "lease") for claim in claims]
    assert answers.count(Done()) == 10, "an eighth of 80"
    for claim, answer in zip(claims, answers, strict=True):
        if answer == BRAKED:
            assert await end(store, claim) == Done()
    [claim] = await expired(store, clock, pool, *leases("good", 1))
    assert await end(store, claim, "lease") == Done()
    assert await tripped(store) == (False, ["evil"])


async def test_an_operator_releases_the_brake_of_one_tenant_and_it_counts_again(store: PostgresStore) -> None:
    clock, pool = await Clock.of(store), await make_pool(store)
    await store.fleet.set_brake(BrakeLimits(claims=4, share=0.0))
    claims = await expired(store, clock, pool, *leases("evil", 6))
    assert [await end(store, claim, "lease") for claim in claims[:3]] == [Done(), Done(), BRAKED]
    assert not await store.fleet.release_brake("looked at it")
    assert not await store.fleet.release_brake("looked at it", tenant="good")
    assert await store.fleet.release_brake("looked at it", tenant="evil")
    await clock.live(1)
    assert [await end(store, claim, "lease") for claim in claims[2:]] == [Done(), Done(), BRAKED, BRAKED]
    assert await tripped(store) == (False, ["evil"])
    kinds = await column(
        store, "SELECT kind || ' ' || tenant FROM holdfast.event WHERE kind LIKE 'brake.%' AND tenant > '' ORDER BY id"
    )
    assert kinds == ["brake.tripped evil", "brake.released evil", "brake.tripped evil"]


async def test_the_parked_workers_of_a_braked_tenant_are_not_scaled_down_and_others_are(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await store.fleet.set_brake(BrakeLimits(workers=4, share=0.0))
    workers = {}
    for tenant in ("evil", "evil", "evil", "good"):
        await make_warm(store, pool)
        pair = await active(store, pool, ask(tenant))
        assert await end(store, pair.claim) == Done()
        workers[pair.worker] = tenant
    answers = [await store.workers.condemn(worker, None, "too many", counted=True) for worker in workers]
    assert answers == [Done(), Done(), BRAKED, Done()]
    assert await tripped(store) == (False, ["evil"])
