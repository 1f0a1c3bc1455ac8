"""Output and events arrive once and complete, even if connections break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from fake_holdfast import TOKEN, FakeHoldfast

from holdfast.client import Client

WHOLE = bytes(range(256)) * 700  # more than one piece; neighbouring bytes differ
JOB = {"outcome": "completed", "exit_code": 0}


def cut_after(server: FakeHoldfast, size: int, *, politely: bool) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Serves some bytes from the requested offset. Then cuts the connection, or ends the answer as a stopping replica does."""

    async def fault(request: web.Request) -> web.StreamResponse:
        at = int(request.query["offset"])
        response = web.StreamResponse(headers={"Holdfast-Offset": str(at)})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(server.outputs[request.match_info["id"]][at : at + size])
        if politely:
            await response.write_eof()
        else:
            assert request.transport is not None
            request.transport.close()
        return response

    return fault


@pytest.fixture
async def client(server: FakeHoldfast) -> AsyncIterator[Client]:
    async with Client(server.urls, TOKEN) as client:
        yield client


async def output_of_a_job(client: Client, offset: int = 0, follow: bool = True) -> bytes:
    claim = await client.claim("linux")
    return await whole_output(client, claim.id, offset=offset, follow=follow)


async def whole_output(client: Client, claim: str, **options: Any) -> bytes:
    return b"".join([piece async for piece in client.output(claim, **options)])


async def test_a_cut_connection_is_resumed_on_another_replica_without_loss_or_doubling(
    server: FakeHoldfast, client: Client
) -> None:
    server.first_output, server.ends_at_once = WHOLE, JOB
    server.fail_next("GET", "/output", cut_after(server, 100_000, politely=False), cut_after(server, 7, politely=False))
    assert await output_of_a_job(client) == WHOLE
    served = [replica for replica, _, path in server.log if "/output" in path]
    assert len(set(served[:2])) == 2


async def test_a_stream_that_a_stopping_replica_ends_in_good_order_is_resumed(server: FakeHoldfast, client: Client) -> None:
    server.first_output, server.ends_at_once = WHOLE, JOB
    server.fail_next("GET", "/output", cut_after(server, 10, politely=True))
    assert await output_of_a_job(client) == WHOLE


async def test_a_polite_end_while_the_job_runs_is_not_its_end(server: FakeHoldfast, client: Client) -> None:
    server.first_output = b"one "
    server.fail_next("GET", "/output", cut_after(server, 4, politely=True))
    claim = await client.claim("linux")
    reading = asyncio.create_task(whole_output(client, claim.id))
    await asyncio.to_thread(server.until, lambda _: len(server.asked("GET", "/output")) >= 2)
    server.write(claim.id, b"two")
    server.change(claim.id, state="ended", **JOB)
    assert await reading == b"one two"


async def test_a_killed_replica_does_not_lose_a_byte(server: FakeHoldfast, client: Client) -> None:
    server.first_output = b"before "
    claim = await client.claim("linux")
    got = b""
    async for piece in client.output(claim.id):
        got += piece
        if got == b"before ":
            await asyncio.to_thread(server.kill, 0)
            server.write(claim.id, b"after")
            server.change(claim.id, state="ended", **JOB)
    assert got == b"before after"


async def test_an_offset_skips_and_without_follow_it_ends(server: FakeHoldfast, client: Client) -> None:
    server.first_output = b"0123456789"
    assert await output_of_a_job(client, offset=4, follow=False) == b"456789"


async def test_a_truncated_output_is_reported_once_however_often_it_is_read(server: FakeHoldfast, client: Client) -> None:
    server.first_output, server.keeps = b"0123", 8
    server.fail_next("GET", "/output", cut_after(server, 2, politely=False), cut_after(server, 1, politely=True))
    reported: list[int] = []
    claim = await client.claim("linux")
    reading = asyncio.create_task(whole_output(client, claim.id, truncated=reported.append))
    await asyncio.to_thread(server.until, lambda _: len(server.asked("GET", "/output")) >= 3)
    assert reported == []  # so far everything was kept
    server.write(claim.id, b"4567and more")
    server.change(claim.id, state="ended", **JOB)
    assert await reading == b"01234567"
    assert reported == [8]
    again: list[int] = []
    assert await whole_output(client, claim.id, truncated=again.append) == b"01234567"
    assert again == [8]


async def pieces_of(client: Client, claim: str, **options: Any) -> list[tuple[str, bytes, int]]:
    return [(each.stream, each.data, each.missing) async for each in client.output_pieces(claim, **options)]


async def test_stdout_and_stderr_are_read_apart_and_in_order_across_a_broken_connection(
    server: FakeHoldfast, client: Client
) -> None:
    server.speaks_lines, server.first_output, server.ends_at_once = True, b"out<err>more<last>", JOB

    async def half_a_line(request: web.Request) -> web.StreamResponse:
        lines = server.as_lines("c-1", 0, server.first_output)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(lines[: len(lines) // 2 + 9])  # in the middle of a line
        assert request.transport is not None
        request.transport.close()
        return response

    server.fail_next("GET", "/output", half_a_line)
    claim = await client.claim("linux")
    assert await pieces_of(client, claim.id) == [
        ("stdout", b"out", 0), ("stderr", b"<err>", 0), ("stdout", b"more", 0), ("stderr", b"<last>", 0)
    ]  # fmt: skip
    assert await whole_output(client, claim.id) == server.first_output
    assert await whole_output(client, claim.id, offset=8) == b"more<last>"


async def test_where_bytes_are_missing_the_output_says_how_many(server: FakeHoldfast, client: Client) -> None:
    server.speaks_lines, server.first_output, server.ends_at_once = True, b"begin~~~~~end\n", JOB
    claim = await client.claim("linux")
    assert await pieces_of(client, claim.id) == [("stdout", b"begin", 0), ("stdout", b"", 5), ("stdout", b"end\n", 0)]
    reported: list[int] = []
    shown = await whole_output(client, claim.id, truncated=reported.append)
    assert shown == b"begin\n[holdfast: 5 bytes are missing here; only the beginning and the end of an output are kept]\nend\n"
    assert reported == [9]


async def test_a_server_of_the_release_before_is_read_as_stdout(server: FakeHoldfast, client: Client) -> None:
    server.first_output, server.ends_at_once = b"out<err>", JOB
    claim = await client.claim("linux")
    assert await pieces_of(client, claim.id) == [("stdout", b"out<err>", 0)]


async def test_events_resume_after_the_last_one_seen(server: FakeHoldfast, client: Client) -> None:
    for number in range(3):
        server.happen("claim.created", claim=f"c-{number}")
    seen: list[str | int] = []
    async for event in client.watch_events():
        seen.append(event.id)
        if len(seen) == 3:
            await asyncio.to_thread(server.kill, 0)
            server.happen("claim.active", claim="c-9")
        if len(seen) == 4:
            break
    assert seen == [1, 2, 3, 4]
