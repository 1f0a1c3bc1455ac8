"""The claims of the client: keys, fail-over, and which requests are repeated."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from fake_holdfast import TOKEN, FakeHoldfast, lose_answer, unavailable

from holdfast.client import ClaimRequest, Client, Conflict, Denied, NotConfigured, NotFound, Unavailable, Unreachable
from holdfast.client.transport import Transport


class Sleeps:
    """A clock that moves only during sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
async def client(server: FakeHoldfast, sleeps: Sleeps) -> AsyncIterator[Client]:
    """Returns a client of both replicas, whose pauses take no time."""
    async with Client.over(Transport(server.urls, TOKEN, clock=sleeps.clock, sleep=sleeps.sleep)) as client:
        yield client


def after_doing(server: FakeHoldfast) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    """Executes the request and then cuts the connection, which is the worst moment."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        await server._claim(request)
        assert request.transport is not None
        request.transport.abort()
        return web.Response(status=500)

    return fault


async def test_a_key_is_made_and_used_again_when_the_answer_is_lost(server: FakeHoldfast, client: Client) -> None:
    server.fail_next("POST", "/claims", after_doing(server))
    claim = await client.claim("linux", command=["true"])
    assert len(server.asked("POST", "/claims")) == 2
    assert list(server.claims) == [claim.id]
    assert claim.key is not None
    assert claim.key.startswith("made-")


async def test_two_claims_without_a_key_are_two_claims(server: FakeHoldfast, client: Client) -> None:
    await client.claim("linux")
    await client.claim("linux")
    assert len(server.claims) == 2


async def test_a_key_of_ones_own_is_kept_and_another_request_under_it_conflicts(client: Client) -> None:
    assert (await client.claim("linux", key="mine")).key == "mine"
    with pytest.raises(Conflict) as caught:
        await client.claim("linux", key="mine", priority=3)
    assert (caught.value.code, caught.value.status) == ("key-conflict", 409)


async def test_a_dead_replica_is_left_for_the_next(server: FakeHoldfast, client: Client, sleeps: Sleeps) -> None:
    server.kill(0)
    await client.list_pools()
    await client.put_pool("linux", {"warm": 1})  # not safe to repeat, but the request was never sent
    assert {replica for replica, _, _ in server.log} == {1}
    assert sleeps.slept == []


async def test_when_no_replica_answers_the_error_names_them_all(server: FakeHoldfast, client: Client) -> None:
    server.kill(0)
    server.kill(1)
    with pytest.raises(Unreachable) as caught:
        await client.list_pools()
    assert all(url in str(caught.value) for url in server.urls)
    assert not caught.value.sent


async def test_what_is_not_safe_is_not_sent_twice(server: FakeHoldfast, client: Client) -> None:
    server.fail_next("POST", "/freeze", lose_answer)
    with pytest.raises(Unreachable) as caught:
        await client.freeze("linux", reason="x")
    assert caught.value.sent
    assert len(server.asked("POST", "/freeze")) == 1


async def test_retry_after_is_honoured(server: FakeHoldfast, client: Client, sleeps: Sleeps) -> None:
    server.fail_next("GET", "/pools", unavailable(7), unavailable(7))
    page = await client.list_pools()
    assert page.items == []
    assert sleeps.slept == [7.0]


async def test_retry_after_beyond_patience_is_an_error_at_once(server: FakeHoldfast, client: Client) -> None:
    server.fail_next("GET", "/pools", unavailable(600), unavailable(600))
    with pytest.raises(Unavailable) as caught:
        await client.list_pools()
    assert caught.value.retry_after == 600


async def test_errors_are_named(server: FakeHoldfast, client: Client) -> None:
    with pytest.raises(NotFound, match="did you mean 'linux'"):
        await client.claim("linus")
    async with Client(server.url, "another") as stranger:
        with pytest.raises(Denied, match="not known"):
            await stranger.list_pools()
    with pytest.raises(NotConfigured, match="is not an address"):
        Client("ftp://somewhere", TOKEN)


async def test_secrets_and_credentials_do_not_show_in_reprs(client: Client) -> None:
    claim = await client.claim("notebook", secrets={"PASSWORD": "hunter2"})
    assert claim.credential is not None
    assert claim.credential not in repr(claim)
    assert "hunter2" not in repr(ClaimRequest(pool="x", secrets={"PASSWORD": "hunter2"}))


async def test_waiting_goes_on_past_one_poll(server: FakeHoldfast, client: Client) -> None:
    server.serves = False
    claim = await client.claim("linux", wait="0s")
    waiting = asyncio.create_task(client.until(claim, "active", poll="1s"))
    polls = lambda: len(server.asked("GET", f"/claims/{claim.id}"))  # noqa: E731
    await asyncio.to_thread(server.until, lambda _: polls() >= 2)
    server.change(claim.id, **server.active(1, leased=False))
    assert (await waiting).state == "active"


async def test_what_claim_returned_can_be_renewed_and_released(server: FakeHoldfast, client: Client) -> None:
    session = await client.claim("notebook")
    assert (await client.renew(session)).lease_until != session.lease_until
    assert (await client.release(session)).outcome == "released"
    with pytest.raises(Conflict):  # the fence of the old claim was sent, so a new assignment of it would be left alone
        await client.renew(session)
    with pytest.raises(ValueError, match="pass its fence"):
        await client.renew("c-1")


async def test_an_old_assignment_is_not_released_with_what_claim_returned(server: FakeHoldfast, client: Client) -> None:
    job = await client.claim("linux", command=["make"])
    server.change(job.id, fence=999)  # the claim was served again
    with pytest.raises(Conflict):
        await client.release(job)
    assert server.claims[job.id]["state"] == "active"


async def test_what_claim_returned_can_be_read_and_cancelled(server: FakeHoldfast, client: Client) -> None:
    server.first_output = b"hello"
    job = await client.claim("linux", command=["make"])
    assert (await client.get_claim(job)).id == job.id
    assert (await client.cancel(job)).outcome == "cancelled"
    assert [piece async for piece in client.output(job)] == [b"hello"]


async def test_a_loop_over_a_page_goes_on_with_the_following_pages(server: FakeHoldfast, client: Client) -> None:
    made = [(await client.claim("linux")).id for _ in range(5)]
    page = await client.list_claims(limit=2)
    assert [claim.id for claim in page.items] == made[:2:-1]
    assert [claim.id async for claim in page] == made[::-1]
    assert [claim.id async for claim in page] == made[::-1]  # a page can be looped over again
    assert all("limit=2" in path for path in server.asked("GET", "/claims"))


async def test_a_loop_over_the_history_ends_with_the_last_event(server: FakeHoldfast, client: Client) -> None:
    for number in range(5):
        server.happen("claim.created", claim=f"c-{number}")
    assert [event.claim async for event in await client.list_events(limit=2)] == [f"c-{n}" for n in range(5)]
    assert [event.claim async for event in await client.list_events(limit=2, newest=True)] == ["c-3", "c-4"]


async def test_a_loop_over_no_page_at_all_ends(client: Client) -> None:
    assert [pool.name async for pool in await client.list_pools()] == []
