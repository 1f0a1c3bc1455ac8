"""The proxy refuses with a status that says why, cuts every connection at the end of a claim, and keeps none of them."""

import asyncio
import socket
from typing import NoReturn

import pytest

from fronted import AUTH, GET, KEY, LIMIT, becomes, fronted, hangs, refusal, says_hi
from holdfast.agent import proxy, proxy_limits, proxy_streams
from holdfast.agent.proxy import Proxy
from holdfast.agent.upstream import Port


def test_the_numbers_of_the_proxy_are_the_documented_ones() -> None:
    assert (proxy.HEAD_SECONDS, proxy.IDLE_SECONDS, proxy.DECIDED_SECONDS, proxy.CONNECT_SECONDS) == (10.0, 60.0, 60.0, 5.0)
    assert (proxy_limits.MOST_CONNECTIONS, proxy_limits.MOST_UNPROVEN, proxy_limits.MOST_PER_ADDRESS) == (480, 320, 200)
    assert (proxy_streams.LINGER_SECONDS, proxy_streams.LINGER_BYTES, proxy.TUNNEL) == (1.0, 1_048_576, b"holdfast:0")
    assert (1).to_bytes(8, "little") == proxy_streams.ABORT, "linger for 0 s, which sends a reset"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (GET.replace(KEY.encode(), b"wrong"), (401, "unauthorized")),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", (401, "unauthorized")),
        (b"NONSENSE\r\n\r\n", (400, "malformed")),
        (b"GET http://h/ HTTP/1.1\r\n" + AUTH + b"\r\n", (400, "malformed")),
        (GET.replace(b"HTTP/1.1\r\nHost: h\r\n", b"HTTP/1.0\r\n"), (400, "malformed")),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000, (431, "malformed")),
    ],
    ids=["wrong credential", "no credential", "not HTTP", "not a path", "HTTP/1.0 without Host", "too long"],
)
async def test_a_request_that_is_refused_never_reaches_the_served_process(request_: bytes, expected: tuple[int, str]) -> None:
    async with fronted(says_hi) as front:
        assert refusal(await front.ask(request_)) == expected
        assert front.upstreams == 0
        await becomes(lambda: not front.proxy._writers and not front.proxy._tasks)


async def test_no_credential_is_right_while_no_claim_is_active() -> None:
    async with fronted(says_hi, opened=False) as front:
        assert refusal(await front.ask()) == (401, "unauthorized")


async def test_a_served_process_that_takes_no_connection_is_reported() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with fronted(says_hi) as front:
            front.proxy._upstream = Port(("127.0.0.1",), closed.getsockname()[1])
            assert refusal(await front.ask()) == (502, "not-serving")


async def test_a_served_process_that_never_takes_the_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "CONNECT_SECONDS", 0.1)

    class Stuck:
        async def connect(self) -> NoReturn:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    async with fronted(says_hi) as front:
        front.proxy._upstream = Stuck()
        assert refusal(await front.ask()) == (502, "not-serving")


@pytest.mark.parametrize("how", ["closed", "reset", "nonsense"])
async def test_a_served_process_that_does_not_answer_is_reported_and_the_connection_ends(how: str) -> None:
    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if how == "reset":
            proxy_streams.abort(writer)
        if how == "nonsense":
            writer.write(b"NONSENSE\r\n\r\n")

    async with fronted(fails) as front:
        assert refusal(await front.ask()) == (502, "not-serving")
        await becomes(lambda: not front.proxy._writers)


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_an_answer_that_breaks_off_ends_with_a_reset(how: str) -> None:
    """The client must not take the part that it got for the whole answer."""

    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.05)  # so that the half was forwarded before the reset discards it
        if how == "reset":
            proxy_streams.abort(writer)

    async with fronted(breaks) as front:
        with pytest.raises(ConnectionResetError):
            await front.ask()
        await becomes(lambda: not front.proxy._writers)


async def test_a_defect_of_the_proxy_is_logged_and_cuts_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> str:
        raise ValueError("a defect")

    async with fronted(says_hi) as front:
        with monkeypatch.context() as patch:
            patch.setattr(proxy, "bad_request", broken)
            with pytest.raises(ConnectionResetError):
                await front.ask()
        assert "proxy failed" in capsys.readouterr().err
        client = await front.dial()
        await client.send(GET)
        assert (await client.answer())[0] == 200


async def test_a_credential_that_was_expected_is_refused_at_once_after_the_end_of_the_claim() -> None:
    async with fronted(says_hi, opened=False) as front:
        front.proxy.expect(KEY)
        front.proxy.close()
        assert refusal(await front.ask()) == (401, "unauthorized")


async def test_a_client_that_leaves_while_it_waits_is_no_defect_of_the_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    async with fronted(hangs) as front:
        client = await front.dial()
        await client.send(GET)
        await becomes(lambda: front.upstreams == 1)
        client.writer.close()
        await becomes(lambda: not front.proxy._writers)
    assert "proxy failed" not in capsys.readouterr().err


@pytest.mark.parametrize("how", ["leaves", "resets", "sends nonsense"])
async def test_a_client_that_breaks_its_request_off_is_no_defect_of_the_proxy(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with fronted(hangs) as front:
        client = await front.dial()
        await client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + AUTH + b"\r\n3\r\none\r\n")
        await becomes(lambda: front.upstreams == 1)
        if how == "leaves":
            client.writer.close()
        elif how == "resets":
            proxy_streams.abort(client.writer)
        else:
            await client.send(b"NONSENSE\r\n")
        await becomes(lambda: not front.proxy._writers)
    assert "proxy failed" not in capsys.readouterr().err


async def test_a_client_that_sends_no_request_is_not_kept_and_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(proxy, "IDLE_SECONDS", 0.3)
    async with fronted(says_hi) as front:
        assert await front.ask(b"GET / HT") == b""
        client = await front.dial()
        await client.send(GET)
        assert (await client.answer())[0] == 200
        assert await client.rest() == b"", "the time since the last request counts as well"


async def test_a_client_that_closes_without_a_request_is_forgotten() -> None:
    async with fronted(says_hi) as front:
        client = await front.dial()
        await becomes(lambda: front.proxy._writers)
        client.writer.write_eof()
        assert await client.rest() == b"", "an end in order, and no reset"
        await becomes(lambda: not front.proxy._writers and not front.proxy._tasks)


async def test_a_dead_client_is_noticed_by_the_system() -> None:
    async with fronted(says_hi) as front:
        await front.dial()
        await becomes(lambda: front.proxy._writers)
        [writer] = front.proxy._writers
        assert writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_the_end_of_the_claim_cuts_both_sides_of_every_connection() -> None:
    ended = asyncio.Event()

    async def works(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await hangs(reader, writer)
        finally:
            ended.set()

    async with fronted(works) as front:
        waiting, idle = await front.dial(), await front.dial()
        await waiting.send(GET)
        await becomes(lambda: front.upstreams == 1 and len(front.proxy._tasks) == 2)
        writers = set(front.proxy._writers)
        front.proxy.close()
        assert len(writers) == 3
        assert all(writer.is_closing() for writer in writers), "at once, before any other task runs"
        for client in (waiting, idle):
            with pytest.raises(ConnectionResetError):
                await client.rest()
        await asyncio.wait_for(ended.wait(), LIMIT)
        await becomes(lambda: not front.proxy._writers and not front.proxy._tasks)
        assert refusal(await front.ask()) == (401, "unauthorized")


async def test_a_stopped_proxy_takes_no_connection_and_keeps_none() -> None:
    Proxy(Port(("127.0.0.1",), 1)).stop()  # one that never listened
    async with fronted(says_hi) as front:
        client = await front.dial()
        await becomes(lambda: front.proxy._tasks)
        front.proxy.stop()
        with pytest.raises(ConnectionResetError):
            await client.rest()
        with pytest.raises(ConnectionRefusedError):
            await front.dial()


async def test_a_refusal_arrives_although_the_client_is_still_sending() -> None:
    """A close with unread bytes would discard the answer."""
    async with fronted(says_hi) as front:
        body = b"x" * 400_000
        request = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 400000\r\n\r\n"
        client = await front.dial()
        await client.send(request + body[:1000])
        assert (await client.answer())[0] == 401
        await client.send(body[1000:])
        client.writer.write_eof()
        assert await client.rest() == b""


async def test_a_refused_client_is_read_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_streams, "LINGER_SECONDS", 0.1)
    async with fronted(says_hi) as front:
        client = await front.dial()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answer())[0] == 401
        await becomes(lambda: not front.proxy._writers)  # although the client keeps its side open


async def test_a_refused_client_is_read_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_streams, "LINGER_SECONDS", LIMIT)
    monkeypatch.setattr(proxy_streams, "LINGER_BYTES", 100_000)
    async with fronted(says_hi) as front:
        client = await front.dial()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answer())[0] == 401
        await client.send(b"x" * 50_000)
        await asyncio.sleep(0.1)
        assert front.proxy._writers, "less than the limit was sent"
        with pytest.raises(ConnectionError):
            await client.send_forever()
        await becomes(lambda: not front.proxy._writers)


async def test_a_request_waits_for_the_decision_about_its_credential() -> None:
    async with fronted(says_hi, opened=False) as front:
        front.proxy.expect(KEY)
        client, other = await front.dial(), await front.dial()
        await client.send(GET)
        await other.send(GET.replace(KEY.encode(), b"wrong"))
        assert (await other.answer())[0] == 401, "a wrong one waits for nothing"
        waiting = asyncio.create_task(client.answer())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        front.proxy.open(KEY)
        assert (await waiting)[0] == 200
        with pytest.raises(AssertionError):
            front.proxy.open("another")


async def test_a_request_is_refused_when_the_decision_is_against_it() -> None:
    async with fronted(says_hi, opened=False) as front:
        front.proxy.expect(KEY)
        asking = asyncio.create_task(front.ask())
        await becomes(lambda: front.proxy._writers)
        await asyncio.sleep(0.05)
        front.proxy._decided.set()
        assert refusal(await asking) == (401, "unauthorized")


@pytest.mark.parametrize("decided", [False, True])
async def test_a_request_that_waited_too_long_is_undecided_unless_another_claim_is_expected(
    decided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "DECIDED_SECONDS", 0.2)
    async with fronted(says_hi, opened=False) as front:
        front.proxy.expect(KEY)
        asking = asyncio.create_task(front.ask())
        await becomes(lambda: front.proxy._writers)
        await asyncio.sleep(0.05)
        if decided:
            front.proxy.expect("another")
        assert refusal(await asking) == ((401, "unauthorized") if decided else (503, "undecided"))
