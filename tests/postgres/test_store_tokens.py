"""Tokens: found by their hash until they expire, listed by age, made once, revoked by id."""

import pytest

from holdfast.postgres.store import PostgresStore
from postgres.changes import apart
from postgres.store_clock import Clock


async def two_tokens(store: PostgresStore) -> Clock:
    clock = await apart(store)
    await store.tokens.make("t-1", "hash-1", "ci", "operator", None, 10.0)
    await store.tokens.make("t-2", "hash-2", "acme", "tenant", "acme", None)
    return clock


async def test_a_token_is_found_by_its_hash_and_no_other(store: PostgresStore) -> None:
    await two_tokens(store)
    assert await store.tokens.by_hash("hash-1") == ("t-1", "operator", None, "ci")
    assert await store.tokens.by_hash("hash-2") == ("t-2", "tenant", "acme", "acme")
    assert await store.tokens.by_hash("hash-3") is None


@pytest.mark.parametrize(("seconds", "found"), [(9.9, True), (10.0, False), (11.0, False)])
async def test_a_token_is_valid_until_the_moment_of_its_expiry(store: PostgresStore, seconds: float, found: bool) -> None:
    clock = await two_tokens(store)
    await clock.jump(seconds)
    assert (await store.tokens.by_hash("hash-1") is not None) == found
    assert await store.tokens.by_hash("hash-2") is not None, "without an expiry it stays valid"


async def test_tokens_are_listed_by_their_age_and_then_by_id(store: PostgresStore) -> None:
    clock = await two_tokens(store)
    await store.tokens.make("t-0", "hash-0", "same time", "admin", None, None)
    await clock.jump(1)
    await store.tokens.make("a-9", "hash-9", "later", "admin", None, None)
    listed = await store.tokens.all()
    assert [token["id"] for token in listed] == ["t-0", "t-1", "t-2", "a-9"]
    [ci] = [token for token in listed if token["id"] == "t-1"]
    assert (ci["name"], ci["role"], ci["tenant"]) == ("ci", "operator", None)
    assert (ci["expires_at"] - ci["created_at"]).total_seconds() == 10.0
    assert listed[0]["expires_at"] is None


async def test_a_token_is_made_once_and_revoked_alone(store: PostgresStore) -> None:
    await two_tokens(store)
    await store.tokens.make("t-3", "hash-1", "the same token again", "admin", None, None)
    assert await store.tokens.by_hash("hash-1") == ("t-1", "operator", None, "ci")
    assert await store.tokens.revoke("t-1")
    assert not await store.tokens.revoke("t-1")
    assert [token["id"] for token in await store.tokens.all()] == ["t-2"]
