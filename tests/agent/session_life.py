"""A session agent that lives in the test's process, and the other container that it guards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from scripted_server import Place, Server

from fronted import becomes
from holdfast.agent.main import Agent
from holdfast.agent.memory import Kept, Memory

KEY = "secret"  # the credential of the scripted server's offers


class Life:
    """A living session agent, and the other container that it guards."""

    def __init__(self, agent: Agent, server: Server) -> None:
        self.agent, self.server = agent, server
        self.living = asyncio.create_task(agent.run())

    async def does(self, doing: str, fence: int | None = None, served: int | None = None) -> dict[str, Any]:
        """Waits until the agent reports this state, for this claim and after this one, and returns its report."""

        def reported() -> bool:
            polls = self.server.sent("poll")
            return bool(polls) and [polls[-1][name] for name in ("doing", "fence", "reset_fence")] == [doing, fence, served]

        await becomes(lambda: reported() or self.living.done())
        assert reported(), self.server.calls
        return self.server.sent("poll")[-1]

    async def status(self, key: str = KEY) -> int:
        assert self.agent.endpoint is not None
        port = int(self.agent.endpoint.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        try:
            return int((await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)).split()[1])
        finally:
            writer.transport.abort()

    async def code(self) -> int:
        return await asyncio.wait_for(self.living, 60)


@pytest.fixture
async def other_container() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    served = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield served.sockets[0].getsockname()[1]
    served.close()


@pytest.fixture
async def begin(place: Place, other_container: int) -> AsyncIterator[Callable[..., Life]]:
    lives: list[Life] = []

    def start(worker: dict[str, Any] | None = None, server: Server | None = None, **settings: Any) -> Life:
        scripted = server or Server()
        scripted.registration |= {"mode": "session", "worker": worker or {"port": other_container}}
        lives.append(Life(place.agent(scripted, **settings), scripted))
        return lives[-1]

    yield start
    for life in lives:
        life.living.cancel()
        await asyncio.wait({life.living})


def kept(place: Place) -> Kept:
    found = Memory(place.folder).kept
    assert found is not None
    return found
