"""The proxy forwards requests, answers, upgrades and tunnels without a change of their content, one request after another."""

import asyncio

import pytest

from fronted import AUTH, GET, LIMIT, becomes, fronted, hangs, refusal, says_hi


async def test_the_answer_arrives_with_its_status_reason_headers_and_body() -> None:
    async with fronted(says_hi) as front:
        client = await front.dial()
        await client.send(GET)
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 Fine\r\n")
        assert b"X-One: 1\r\n" in head
        assert await client.reader.readexactly(2) == b"hi"


async def test_a_connection_carries_one_request_after_another_even_if_they_were_sent_together() -> None:
    async with fronted(says_hi) as front:
        client = await front.dial()
        await client.send(GET)
        assert (await client.answer())[2] == b"hi"
        await client.send(GET + GET)
        assert [(await client.answer())[2] for _ in range(2)] == [b"hi", b"hi"]
        assert front.upstreams == 3, "each request has its own connection to the served process"
        await client.send(GET.replace(b"Host: h", b"Host: h\r\nConnection: close"))
        assert (await client.answer())[2] == b"hi"
        assert await client.rest() == b""
        await becomes(lambda: not front.proxy._writers and not front.proxy._tasks)


async def test_the_served_process_sees_the_end_of_a_connection_as_soon_as_its_answer_was_forwarded() -> None:
    ended = asyncio.Event()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says_hi(reader, writer)
        await reader.read()
        ended.set()

    async with fronted(answers) as front:
        client = await front.dial()
        await client.send(GET)
        assert (await client.answer())[2] == b"hi"
        await asyncio.wait_for(ended.wait(), LIMIT)


async def test_the_served_process_gets_method_target_headers_and_body_in_order() -> None:
    got = bytearray()

    async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with fronted(keeps) as front:
        client = await front.dial()
        await client.send(b"PUT /a?b=c HTTP/1.1\r\nX-Two: 2\r\nTransfer-Encoding: chunked\r\n" + AUTH + b"\r\n3\r\none\r\n")
        await becomes(lambda: b"one" in got or front.upstreams)
        await client.send(b"3\r\ntwo\r\n0\r\n\r\n")
        assert (await client.answer())[0] == 204
    head, _, body = bytes(got).partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /a?b=c HTTP/1.1\r\n")
    assert b"X-Two: 2" in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


@pytest.mark.parametrize(("version", "early"), [(b"1.1", True), (b"1.0", False)])
async def test_an_early_answer_is_forwarded_to_a_client_that_understands_it(version: bytes, early: bool) -> None:
    async def hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async with fronted(hints) as front:
        answer = await front.ask(
            GET.replace(b"HTTP/1.1", b"HTTP/" + version).replace(b"Host: h", b"Host: h\r\nConnection: close")
        )
        assert answer.endswith(b"hi")
        assert answer.startswith(b"HTTP/1.1 103 Hints\r\nLink: </a>\r\n" if early else b"HTTP/1.1 200 OK\r\n")


UPGRADE = b"GET /ws HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + AUTH + b"\r\n"
CONNECT = b"CONNECT holdfast:0 HTTP/1.1\r\n" + AUTH + b"\r\n"


async def test_after_an_upgrade_bytes_pass_in_both_directions_until_both_sides_have_finished() -> None:
    seen = bytearray()

    async def upgrades(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 101 Switch\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Key: k\r\n\r\nfirst")
        writer.write((await reader.readexactly(4)).upper())
        assert await reader.read() == b"", "the client has finished"
        writer.write(b"last")

    async with fronted(upgrades) as front:
        client = await front.dial()
        await client.send(UPGRADE)
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 Switch\r\n")
        assert {b"upgrade: websocket", b"connection: upgrade", b"x-key: k"} <= set(head.lower().split(b"\r\n"))
        assert await client.reader.readexactly(5) == b"first", "it was sent together with the head"
        await client.send(b"ping")
        assert await client.reader.readexactly(4) == b"PING"
        client.writer.write_eof()
        assert await client.rest() == b"last"
        await becomes(lambda: not front.proxy._writers)
    assert b"upgrade: websocket" in bytes(seen).lower()


async def test_a_tunnel_carries_what_was_sent_with_its_request_and_large_streams() -> None:
    async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async with fronted(echoes) as front:
        client = await front.dial()
        await client.send(CONNECT + b"early")
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 Connected\r\n")
        assert await client.reader.readexactly(5) == b"early"
        large = bytes(range(256)) * 4000
        reading = asyncio.create_task(client.reader.readexactly(len(large)))
        await client.send(large)
        assert await asyncio.wait_for(reading, LIMIT) == large
        client.writer.write_eof()
        assert await client.rest() == b""


async def test_a_tunnel_whose_served_process_breaks_is_cut() -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.transport.abort()

    async with fronted(breaks) as front:
        client = await front.dial()
        await client.send(CONNECT + b"ping")
        await client.until(b"\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await client.send_forever()
        await becomes(lambda: not front.proxy._writers)


async def test_only_the_named_tunnel_is_open() -> None:
    async with fronted(says_hi) as front:
        assert refusal(await front.ask(CONNECT.replace(b"holdfast:0", b"other:22"))) == (400, "malformed")
        assert front.upstreams == 0


async def test_an_answer_before_the_end_of_the_request_is_forwarded_and_the_rest_of_the_body_still_read() -> None:
    async def answers_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await reader.read()

    async with fronted(answers_early) as front:
        client = await front.dial()
        await client.send(b"POST / HTTP/1.1\r\nContent-Length: 8\r\n" + AUTH + b"\r\nhalf")
        assert (await client.answer())[0] == 200
        await client.send(b"half" + GET)
        assert (await client.answer())[0] == 200, "the next request follows after the end of the body"


async def test_a_body_that_never_ends_is_given_up_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.proxy_streams.LINGER_SECONDS", 0.1)
    async with fronted(says_hi) as front:
        answer = await front.ask(b"POST / HTTP/1.1\r\nContent-Length: 8\r\n" + AUTH + b"\r\nhalf")
        assert answer.endswith(b"hi")


@pytest.mark.parametrize("request_", [GET, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n" + AUTH + b"\r\nhalf"])
async def test_a_client_that_leaves_ends_the_work_of_the_served_process(request_: bytes) -> None:
    ended = asyncio.Event()

    async def works(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await hangs(reader, writer)
        finally:
            ended.set()

    async with fronted(works) as front:
        client = await front.dial()
        await client.send(request_)
        await becomes(lambda: front.upstreams == 1)
        client.writer.close()
        await asyncio.wait_for(ended.wait(), LIMIT)
        await becomes(lambda: not front.proxy._writers)
