"""An agent in this process, on virtual time, and the server that it talks to: a test sets the answers and reads the calls."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent import control, main
from holdfast.agent.config import Config
from holdfast.agent.http import HttpResponse, Unreachable
from holdfast.agent.main import Agent
from virtual_time import passed

STALE = HttpResponse(409, b'{"code": "stale"}')
Call = tuple[float, str, dict[str, Any]]


class Server:
    """Answers the agent's calls in place of its HTTP client. A poll is open until there is a directive or its time is up."""

    def __init__(self, **registration: Any) -> None:
        self.registration = {"token": "signed", "mode": "job", "poll_seconds": 20, "grace": 3600} | registration
        self.calls: list[Call] = []
        self.servers: list[str] = []  # the address of each call
        self.directives: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.answers: dict[str, list[HttpResponse]] = {}
        self.away: set[str] = set()  # calls of these kinds do not reach the server
        self.slow: dict[str, float] = {}  # seconds until the answer, by the kind of call
        self.open_polls = self.most_polls = 0
        self.closed = False

    async def post(self, server: str, path: str, token: str, body: bytes, timeout: float) -> HttpResponse:
        call, sent = path.removeprefix("/v1/worker/"), json.loads(body)
        self.calls.append((passed(), call, sent))
        self.servers.append(server)
        if call in self.away:
            raise Unreachable("gone")
        await asyncio.sleep(self.slow.get(call, 0))
        if self.answers.get(call):
            return self.answers[call].pop(0)
        if call == "register":
            return answer(self.registration)
        return answer(await self._directive(sent["wait"])) if call == "poll" else HttpResponse(200, b"{}")

    async def _directive(self, wait: float) -> dict[str, Any]:
        self.open_polls += 1
        self.most_polls = max(self.most_polls, self.open_polls)
        try:
            async with asyncio.timeout(wait):
                return await self.directives.get()
        except TimeoutError:
            return {"do": "nothing"}
        finally:
            self.open_polls -= 1

    def close(self) -> None:
        self.closed = True

    # For tests

    def offer(self, fence: int = 7, claim: str = "c-1", **more: Any) -> None:
        assignment = {"claim": claim, "fence": fence, "tenant": "acme", "command": ["true"], "credential": "secret"} | more
        self.directives.put_nowait({"do": "hold", "assignment": assignment})

    def direct(self, **directive: Any) -> None:
        self.directives.put_nowait(directive)

    def sent(self, call: str) -> list[dict[str, Any]]:
        return [body for _, each, body in self.calls if each == call]

    def times(self, call: str) -> list[float]:
        return [at for at, each, _ in self.calls if each == call]

    def doing(self) -> list[str]:
        """Returns the states that the agent reported, each once in a row."""
        states = [str(poll["doing"]) for poll in self.sent("poll")]
        return [state for number, state in enumerate(states) if number == 0 or states[number - 1] != state]


def answer(body: dict[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, json.dumps(body).encode())


class Place:
    """A folder for an agent. `clocks` makes the agent's own clock virtual as well."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "token").write_text("bootstrap-1")
        (folder / "work").mkdir()
        self.stage = folder / "stage"
        self.stage.mkdir()
        clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
        monkeypatch.setattr(main, "time", clock)
        monkeypatch.setattr(control, "time", clock)

    def agent(self, server: Server, **settings: Any) -> Agent:
        usual: dict[str, Any] = {
            "worker": "w-1",
            "uid": "uid-1",
            "token_file": self.folder / "token",
            "servers_file": None,
            "servers": ("http://one",),
            "folder": self.folder,
            "outputs": self.folder,
            "lonely": 600.0,
            "bind": "127.0.0.1",
            "port": 0,
            "advertise": "127.0.0.1",
        }
        agent = Agent(Config(**(usual | settings)))
        agent.control._client = server  # type: ignore[assignment]
        return agent
