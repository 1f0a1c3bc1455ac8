"""A proxy in this process, between a served process that the test writes as a function and clients that send raw bytes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from holdfast.agent.proxy import Proxy
from holdfast.agent.upstream import Port

KEY = "open-sesame"
AUTH = f"Host: h\r\nAuthorization: Bearer {KEY}\r\n".encode()
GET = b"GET /x HTTP/1.1\r\n" + AUTH + b"\r\n"
LIMIT = 20.0  # seconds; no wait of these tests may last longer
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_forever(self) -> None:
        """Sends until the connection is cut."""
        async with asyncio.timeout(LIMIT):
            while True:
                await self.send(b"more" * 1000)
                await asyncio.sleep(0.001)

    async def rest(self) -> bytes:
        """Reads until the connection ends. Raises ConnectionResetError if it is cut."""
        return await asyncio.wait_for(self.reader.read(), LIMIT)

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), LIMIT)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Reads one answer with a length. Returns its status, its headers and its body."""
        head, *lines = (await self.until(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await asyncio.wait_for(self.reader.readexactly(int(headers.get("content-length", 0))), LIMIT)
        return int(head.split()[1]), headers, body


class Front:
    def __init__(self, proxy: Proxy, port: int) -> None:
        self.proxy, self.port = proxy, port
        self.clients: list[Client] = []
        self.upstreams = 0

    async def dial(self) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]

    async def ask(self, data: bytes = GET) -> bytes:
        """Sends these bytes on a new connection, and returns everything until its end."""
        client = await self.dial()
        await client.send(data)
        return await client.rest()


@contextlib.asynccontextmanager
async def fronted(handler: Handler, *, opened: bool = True) -> AsyncIterator[Front]:
    front: Front | None = None

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert front is not None
        front.upstreams += 1
        with contextlib.suppress(OSError, EOFError):
            await handler(reader, writer)
        writer.close()

    served = await asyncio.start_server(count, "127.0.0.1", 0)
    proxy = Proxy(Port(("127.0.0.1",), served.sockets[0].getsockname()[1]))
    front = Front(proxy, await proxy.listen("127.0.0.1", 0))
    if opened:
        proxy.open(KEY)
    try:
        yield front
    finally:
        proxy.stop()
        served.close()
        for client in front.clients:
            client.writer.transport.abort()


async def says_hi(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nX-One: 1\r\n\r\nhi")


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers nothing, and returns when the proxy ends the connection."""
    while await reader.read(65_536):
        pass


def refusal(answer: bytes) -> tuple[int, str]:
    """Returns the status and the code of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    answer: dict[str, Any] = json.loads(body)
    assert answer["status"] == int(head.split()[1])
    return answer["status"], answer["code"]


async def becomes(check: Callable[[], object]) -> None:
    """Waits until the check is true."""
    async with asyncio.timeout(LIMIT):
        while not check():
            await asyncio.sleep(0.005)
