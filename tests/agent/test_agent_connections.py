"""Which connections an agent keeps between its calls, and which it closes at once."""

import asyncio
import socket
import struct

import pytest
from replica import OK, Server, post, run

from holdfast.agent import http as module
from holdfast.agent.http import IDLE_CONNECTIONS, HttpClient, Unreachable


def test_a_connection_is_kept_between_calls_and_never_shared_with_another_server() -> None:
    async def story(server: Server, client: HttpClient) -> None:
        for _ in range(3):
            await post(client, server.url)
        assert server.connections == 1
        async with Server() as other:
            await post(client, other.url)
            assert (server.connections, other.connections) == (1, 1)

    run(story)


@pytest.mark.parametrize("ends", [None, OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")], ids=["cut", "closed"])
def test_a_kept_connection_that_the_server_ended_is_replaced_without_a_word(ends: bytes | None) -> None:
    async def story(server: Server, client: HttpClient) -> None:
        await post(client, server.url)
        assert (await post(client, server.url)).status == 200
        assert (await post(client, server.url)).status == 200

    assert run(story, OK, ends, OK, OK).connections == 2


def test_at_most_four_connections_are_kept() -> None:
    async def story(server: Server, client: HttpClient) -> None:
        for _ in range(2):
            server.gate = asyncio.Event()
            calls = [asyncio.create_task(post(client, server.url)) for _ in range(6)]
            while len(server.bodies) % 6 or not server.bodies:
                await asyncio.sleep(0.001)
            server.gate.set()
            await asyncio.gather(*calls)
            server.bodies.clear()

    assert IDLE_CONNECTIONS == 4
    assert run(story).connections == 6 + 2


def test_no_answer_within_the_time_is_none_and_its_connection_is_not_used_again() -> None:
    async def story(server: Server, client: HttpClient) -> None:
        server.gate = asyncio.Event()
        with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
            await post(client, server.url, 0.05)
        server.gate.set()
        server.gate = None
        assert (await post(client, server.url)).status == 200

    assert run(story).connections == 2


def cut(transport: asyncio.WriteTransport) -> None:
    """Ends a connection with a reset."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def connections(client: HttpClient) -> list[module._Connection]:
    """Returns a list that collects the connections that the client opens from now on."""
    opened: list[module._Connection] = []
    connect = client._connect

    async def kept(server: str) -> module._Connection:
        opened.append(await connect(server))
        return opened[-1]

    client._connect = kept  # type: ignore[method-assign]
    return opened


@pytest.mark.parametrize("how", ["reset", "nonsense", "cancelled", "to be closed"])
def test_a_connection_that_cannot_be_used_again_is_closed_at_once(how: str) -> None:
    async def story(server: Server, client: HttpClient) -> None:
        opened = connections(client)
        server.gate = asyncio.Event()
        asking = asyncio.create_task(post(client, server.url, 60.0))
        while not server.bodies:
            await asyncio.sleep(0.001)
        if how == "cancelled":
            asking.cancel()
        elif how == "reset":
            cut(server.transports[0])
        else:
            server.gate.set()
        await asyncio.wait({asking})
        server.gate.set()
        if how == "cancelled":
            assert asking.cancelled()
        elif how == "to be closed":
            assert asking.result().status == 200
        else:
            assert isinstance(asking.exception(), Unreachable)
        assert opened[0]._writer.is_closing()
        assert not client._idle.get(server.url)

    # The server says that it closes the connection, and does not do so.
    closes = OK.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n")
    run(story, b"NONSENSE\r\n\r\n" if how == "nonsense" else closes)


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_kept_connection_that_ended_is_closed_and_gets_no_request(how: str) -> None:
    async def story(server: Server, client: HttpClient) -> None:
        await post(client, server.url)
        [connection] = client._idle[server.url]
        assert connection.good()
        for transport in server.transports:
            transport.close() if how == "closed" else cut(transport)
        while connection.good():
            await asyncio.sleep(0.001)
        asking = connection.ask
        connection.ask = None  # type: ignore[method-assign, assignment]
        assert (await post(client, server.url)).status == 200
        assert asking.__self__._writer.is_closing()  # type: ignore[attr-defined]

    assert run(story).connections == 2


def test_closing_ends_the_kept_connections() -> None:
    async def story(server: Server, client: HttpClient) -> None:
        await post(client, server.url)
        [connection] = client._idle[server.url]
        client.close()
        assert connection._writer.is_closing()
        assert client._idle == {}
        await post(client, server.url)
        assert server.connections == 2

    run(story)
