"""A client without the credential opens connections and sends nothing. The holder must still reach its session."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from fronted import GET, Client, Front, becomes, fronted, hangs, says_hi
from holdfast.agent import proxy, proxy_limits

WRONG = GET.replace(b"open-sesame", b"wrong")


async def status(front: Front, request: bytes = GET) -> int:
    client = await front.dial()
    await client.send(request)
    return (await client.answer())[0]


@contextlib.asynccontextmanager
async def idle(front: Front, count: int, source: str = "127.0.0.1") -> AsyncIterator[list[Client]]:
    """Opens connections that send nothing."""
    opened = [
        Client(*await asyncio.open_connection("127.0.0.1", front.port, local_addr=(source, 0), limit=1024)) for _ in range(count)
    ]
    try:
        yield opened
    finally:
        for client in opened:
            client.writer.transport.abort()


async def is_cut(client: Client) -> bool:
    try:
        return await asyncio.wait_for(client.reader.read(1), 0.05) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


async def test_the_holder_gets_through_480_idle_connections() -> None:
    async with fronted(says_hi) as front, idle(front, 480):
        assert await status(front) == 200
        assert len(front.proxy._connections) <= proxy_limits.MOST_PER_ADDRESS + 1


async def test_the_oldest_connection_of_the_address_is_cut_and_other_addresses_are_not_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_limits, "MOST_PER_ADDRESS", 3)
    async with fronted(says_hi) as front, idle(front, 1, "127.0.0.9") as others, idle(front, 5) as flood:
        await becomes(lambda: len(front.proxy._connections) == 4)
        assert [await is_cut(client) for client in flood] == [True, True, False, False, False]
        assert not await is_cut(others[0])


async def test_many_addresses_together_are_limited_too_and_the_oldest_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_limits, "MOST_UNPROVEN", 4)
    async with fronted(says_hi) as front, contextlib.AsyncExitStack() as stack:
        flood = [(await stack.enter_async_context(idle(front, 1, f"127.0.0.{n}")))[0] for n in range(2, 8)]
        await becomes(lambda: len(front.proxy._connections) == 4)
        assert [await is_cut(client) for client in flood] == [True, True, False, False, False, False]
        assert await status(front) == 200


async def test_a_connection_that_has_shown_the_credential_is_never_cut_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("MOST_CONNECTIONS", 6), ("MOST_UNPROVEN", 4), ("MOST_PER_ADDRESS", 4)):
        monkeypatch.setattr(proxy_limits, name, limit)
    async with fronted(hangs) as front:
        waiting = [await front.dial() for _ in range(4)]
        for client in waiting:
            await client.send(GET)
        await becomes(lambda: front.upstreams == 4)
        async with idle(front, 20):
            await becomes(lambda: len(front.proxy._connections) == 6)
            assert [await is_cut(client) for client in waiting] == [False] * 4
            for _ in range(2):
                client = await front.dial()
                await client.send(GET)
            await becomes(lambda: front.upstreams == 6)  # the holder may use all of them
        with pytest.raises(ConnectionResetError):  # only then a new connection is refused
            await front.ask()
        assert [await is_cut(client) for client in waiting] == [False] * 4


async def test_a_wrong_credential_does_not_make_a_connection_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_limits, "MOST_PER_ADDRESS", 2)
    async with fronted(says_hi) as front:
        refused = await front.dial()
        await refused.send(WRONG)
        assert (await refused.answer())[0] == 401
        assert not front.proxy._connections.is_proven(next(iter(front.proxy._writers)))


async def test_a_slow_head_ends_after_its_time_and_an_idle_connection_of_the_holder_lives_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "HEAD_SECONDS", 0.2)
    async with fronted(says_hi) as front:
        holder, slow = await front.dial(), await front.dial()
        await holder.send(GET)
        assert (await holder.answer())[0] == 200
        began = time.monotonic()
        await slow.send(b"GET / HTTP/1.1\r\n")
        assert await slow.rest() == b""
        assert time.monotonic() - began < 10, "the head has 0.2 s in this test"
        await holder.send(GET)
        assert (await holder.answer())[0] == 200


async def test_a_request_of_http_1_0_without_host_is_answered() -> None:
    async with fronted(says_hi) as front:
        answer = await front.ask(GET.replace(b"HTTP/1.1\r\nHost: h\r\n", b"HTTP/1.0\r\n"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"the request has no Host header" in answer
        assert await status(front, GET.replace(b"HTTP/1.1", b"HTTP/1.0")) == 200
