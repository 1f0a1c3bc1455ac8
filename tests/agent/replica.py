"""A replica whose answers are raw bytes, for tests of the agent's HTTP client."""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.agent.http import HttpClient, HttpResponse

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """A replica that answers each request of a connection with the next bytes of its script. None closes the connection."""

    def __init__(self, *script: bytes | None) -> None:
        self.script = list(script)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.transports: list[asyncio.WriteTransport] = []
        self.gate: asyncio.Event | None = None

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.transports.append(writer.transport)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                if self.gate is not None:
                    await self.gate.wait()
                answer = self.script.pop(0) if self.script else OK
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if b"close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def run(story: Callable[[Server, HttpClient], Awaitable[None]], *script: bytes | None) -> Server:
    async def main() -> Server:
        async with Server(*script) as server:
            client = HttpClient()
            try:
                await story(server, client)
            finally:
                client.close()
            return server

    return asyncio.run(main())


async def post(client: HttpClient, url: str, timeout: float = 5.0) -> HttpResponse:
    return await client.post(url, "/v1/worker/poll", "t0ken", b'{"a":1}', timeout)
