"""Authentication: bearer tokens, how long they are cached, streams per token, and the contents of agents' tokens."""

import asyncio
import base64
import hashlib
import hmac
import json
from typing import Any, cast

import pytest

from holdfast.api import auth as module
from holdfast.api.auth import AGENT_TOKEN_SECONDS, CACHE_SECONDS, STREAMS, Auth, Caller, bearer, hash_token
from holdfast.api.problems import Problem
from holdfast.ports.cluster import AgentIdentity
from holdfast.ports.store import StoreUnavailable

KEY = b"a key of 32 bytes for one test.."
TENANT = ("t-1", "tenant", "acme", "of acme")


class Hands:
    """A clock that the test moves."""

    def __init__(self, wall: float = 1_800_000_000.5, running: float = 50.0) -> None:
        self.wall, self.running = wall, running

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.running


class Tokens:
    """The store's side: known tokens by their hash, and how often it was read."""

    def __init__(self, **known: tuple[str, str, str | None, str]) -> None:
        self.known = {hash_token(token): found for token, found in known.items()}
        self.asked: list[str] = []
        self.away = False

    async def by_hash(self, hashed: str) -> tuple[str, str, str | None, str] | None:
        self.asked.append(hashed)
        if self.away:
            raise StoreUnavailable("away")
        return self.known.get(hashed)


def made(tokens: Tokens | None = None, clock: Hands | None = None) -> Auth:
    return Auth(cast(Any, tokens or Tokens()), KEY, clock or Hands())


def called(auth: Auth, token: str) -> Caller:
    return asyncio.run(auth.caller(f"Bearer {token}"))


def refused(auth: Auth, token: str) -> Problem:
    with pytest.raises(Problem) as caught:
        called(auth, token)
    return caught.value


@pytest.mark.parametrize(("role", "trusted"), [("admin", True), ("operator", True), ("tenant", False)])
def test_a_tenant_sees_only_itself_and_others_see_everyone(role: str, trusted: bool) -> None:
    caller = Caller("t-1", cast(Any, role), "acme")
    assert caller.trusted is trusted
    assert caller.sees("acme")
    assert caller.sees("rival") is trusted


def test_a_token_is_looked_up_by_its_hash_and_names_its_caller() -> None:
    tokens = Tokens(secret=TENANT)
    assert called(made(tokens), "secret") == Caller("t-1", "tenant", "acme", "of acme")
    assert tokens.asked == [hashlib.sha256(b"secret").hexdigest()]


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer    ", "Basic secret", "secret", "bearersecret"])
def test_a_header_without_a_bearer_token_is_refused_with_a_challenge(header: str | None) -> None:
    with pytest.raises(Problem) as caught:
        bearer(header)
    assert (caught.value.status, caught.value.code, caught.value.headers) == (
        401,
        "unauthenticated",
        {"WWW-Authenticate": "Bearer"},
    )


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "BEARER   secret  "])
def test_a_bearer_token_is_read_in_any_case_and_without_the_space_around_it(header: str) -> None:
    assert bearer(header) == "secret"


def test_an_unknown_token_is_refused_with_a_challenge() -> None:
    problem = refused(made(), "guess")
    assert (problem.status, problem.code, problem.headers) == (401, "unauthenticated", {"WWW-Authenticate": "Bearer"})


def test_a_token_is_remembered_for_five_seconds_and_a_revoked_one_is_refused_then() -> None:
    tokens, clock = Tokens(secret=TENANT), Hands()
    auth = made(tokens, clock)
    called(auth, "secret")
    tokens.known.clear()
    assert CACHE_SECONDS == 5.0
    clock.running += CACHE_SECONDS
    assert called(auth, "secret").id == "t-1", "still remembered"
    assert len(tokens.asked) == 1
    clock.running += 0.001
    refused(auth, "secret")
    assert len(tokens.asked) == 2


def test_a_refusal_is_remembered_as_long_so_that_guesses_do_not_reach_the_store() -> None:
    tokens, clock = Tokens(), Hands()
    auth = made(tokens, clock)
    refused(auth, "late")
    tokens.known[hash_token("late")] = TENANT
    refused(auth, "late")
    assert len(tokens.asked) == 1
    clock.running += CACHE_SECONDS + 0.001
    assert called(auth, "late").id == "t-1"


def test_a_full_memory_forgets_guesses_and_old_entries_and_keeps_valid_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_SIZE", 3)
    tokens, clock = Tokens(old=("t-0", "tenant", "acme", "old"), known=TENANT), Hands()
    auth = made(tokens, clock)
    called(auth, "old")
    clock.running += 3
    called(auth, "known")
    refused(auth, "guess")
    clock.running += CACHE_SECONDS - 3
    refused(auth, "another guess")  # three are cached already; at exactly this time `old` still counts
    assert set(auth._known) == {hash_token("old"), hash_token("known"), hash_token("another guess")}
    clock.running += 1
    refused(auth, "a third guess")
    assert set(auth._known) == {hash_token("known"), hash_token("a third guess")}


def test_below_its_size_the_memory_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_SIZE", 3)
    auth = made()
    for guess in ("one", "two", "three"):
        refused(auth, guess)
    assert len(auth._known) == 3


def test_the_memory_has_room_for_ten_thousand() -> None:
    assert module.CACHE_SIZE == 10_000


def test_while_the_store_is_away_only_tokens_known_before_are_accepted() -> None:
    tokens, clock = Tokens(secret=TENANT), Hands()
    auth = made(tokens, clock)
    called(auth, "secret")
    refused(auth, "guess")
    tokens.away = True
    clock.running += 60
    asyncio.run(auth.anyone("Bearer secret"))
    for token in ("guess", "never seen"):
        with pytest.raises(StoreUnavailable):
            asyncio.run(auth.anyone(f"Bearer {token}"))


def test_every_valid_token_is_accepted_and_no_other() -> None:
    auth = made(Tokens(secret=TENANT))
    asyncio.run(auth.anyone("Bearer secret"))
    asyncio.run(auth.anyone(f"Bearer {auth.sign_agent(AgentIdentity('w-1', 'uid-1'))}"))
    for token in ("guess", "hfa_guess.mac"):
        with pytest.raises(Problem) as caught:
            asyncio.run(auth.anyone(f"Bearer {token}"))
        assert caught.value.status == 401


def test_an_agents_token_is_judged_without_the_store() -> None:
    tokens = Tokens()
    auth = made(tokens)
    asyncio.run(auth.anyone(f"Bearer {auth.sign_agent(AgentIdentity('w-1', 'uid-1'))}"))
    assert tokens.asked == []


def test_a_stream_goes_on_until_its_token_is_revoked() -> None:
    tokens, clock = Tokens(secret=TENANT), Hands()
    auth = made(tokens, clock)
    assert asyncio.run(auth.still("Bearer secret")) is True
    tokens.known.clear()
    clock.running += CACHE_SECONDS + 1
    assert asyncio.run(auth.still("Bearer secret")) is False


def test_a_token_may_have_32_streams_and_gets_each_place_back_when_one_ends() -> None:
    auth, caller, other = made(), Caller("t-1", "tenant", "acme"), Caller("t-2", "tenant", "acme")
    opened = [auth.streaming(caller) for _ in range(STREAMS)]
    for each in opened:
        auth.may_stream(caller)
        each.__enter__()
    with pytest.raises(Problem) as caught:
        auth.may_stream(caller)
    assert (caught.value.status, caught.value.code, caught.value.headers) == (429, "too-many", {"Retry-After": "5"})
    assert STREAMS == 32
    auth.may_stream(other)
    opened.pop().__exit__(None, None, None)
    auth.may_stream(caller)
    opened.append(auth.streaming(caller))
    opened[-1].__enter__()
    with pytest.raises(Problem):
        auth.may_stream(caller)
    for each in opened:
        each.__exit__(None, None, None)
    assert dict(auth._streams) == {}, "a caller without streams takes no memory"


def test_a_stream_that_breaks_gives_its_place_back_too() -> None:
    auth, caller = made(), Caller("t-1", "tenant", "acme")
    with pytest.raises(ConnectionResetError), auth.streaming(caller):
        raise ConnectionResetError
    assert dict(auth._streams) == {}


def test_an_agents_token_lasts_an_hour_by_the_wall_clock_to_the_second() -> None:
    clock = Hands(wall=1_800_000_000.0)
    auth = made(clock=clock)
    header = f"Bearer {auth.sign_agent(AgentIdentity('w-1', 'uid-1'))}"
    assert AGENT_TOKEN_SECONDS == 3600
    clock.wall += AGENT_TOKEN_SECONDS
    assert auth.agent(header) == AgentIdentity("w-1", "uid-1")
    clock.wall += 0.5
    with pytest.raises(Problem) as caught:
        auth.agent(header)
    assert (caught.value.status, caught.value.code, caught.value.headers) == (401, "expired", {"WWW-Authenticate": "Bearer"})


@pytest.mark.parametrize("prefix", ["", "hfc_", "HFA_"])
def test_what_has_our_signature_and_not_an_agents_prefix_is_no_agents_token(prefix: str) -> None:
    auth = made()
    token = prefix + auth.sign_agent(AgentIdentity("w-1", "uid-1")).removeprefix("hfa_")
    with pytest.raises(Problem) as caught:
        auth.agent(f"Bearer {token}")
    assert (caught.value.status, caught.value.code, caught.value.headers) == (
        401,
        "unauthenticated",
        {"WWW-Authenticate": "Bearer"},
    )


@pytest.mark.parametrize("worker", ["w", "w-1", "w-12", "w-123"])
def test_an_agents_token_is_a_signed_body_without_padding(worker: str) -> None:
    """Replicas of two releases have to accept each other's tokens, so the format is fixed."""
    auth = made(clock=Hands(wall=1_800_000_000.9))
    body, _, mac = auth.sign_agent(AgentIdentity(worker, "uid-1")).removeprefix("hfa_").partition(".")
    assert "=" not in body + mac
    assert json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) == [worker, "uid-1", 1_800_003_600]
    expected = hmac.new(KEY, body.encode(), hashlib.sha256).digest()
    assert mac == base64.urlsafe_b64encode(expected).decode().rstrip("=")
    assert auth.agent(f"Bearer hfa_{body}.{mac}") == AgentIdentity(worker, "uid-1")


def test_each_assignment_has_a_credential_of_its_own_that_every_replica_can_derive() -> None:
    """P1: a credential is valid for one assignment only, so it is derived from both claim and fence."""
    credential = made().credential("c-1", 7)
    assert credential == made().credential("c-1", 7)
    assert credential.startswith("hfc_")
    others = {
        made().credential("c-1", 8),
        made().credential("c-2", 7),
        Auth(cast(Any, None), b"another", Hands()).credential("c-1", 7),
    }
    assert len(others | {credential}) == 4
    signed = hmac.new(KEY, b"credential.c-1.7", hashlib.sha256).digest()
    assert credential == "hfc_" + base64.urlsafe_b64encode(signed).decode().rstrip("=")


def test_a_token_is_looked_up_also_in_the_first_second_of_a_machines_life() -> None:
    assert called(made(Tokens(secret=TENANT), Hands(running=0.5)), "secret").id == "t-1"


@pytest.mark.parametrize("kind", [Caller, AgentIdentity], ids=lambda kind: kind.__name__)
def test_an_identity_cannot_be_changed(kind: type) -> None:
    assert kind.__struct_config__.frozen  # type: ignore[attr-defined]
