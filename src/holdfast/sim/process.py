"""One replica as a process of the simulated world. It can boot, serve, pause, crash and be replaced."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from ..ids import Ids
from ..ports.cluster import Cluster
from ..ports.recovery import Mark
from ..wiring import Wired, wire
from .gate import Gate, Line, SimStore
from .loop import Owner, VirtualLoop, start

KEY = b"a key of the simulation's, as good as any other"
CLIENT_TIMEOUT = 75.0  # seconds; longer than every wait that the server allows


class Unreachable(Exception):
    """There was no answer. The request may or may not have been served."""


class SimResponse(msgspec.Struct, frozen=True):
    status: int
    body: Any


class ReplicaClock:
    """The clocks of one replica."""

    def __init__(self, loop: VirtualLoop, epoch: float) -> None:
        self._loop = loop
        self._epoch = epoch
        self.jump = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return self._epoch + self._loop.time() + self.jump


class ReplicaProcess:
    """A replica. The production wiring builds everything in it."""

    def __init__(
        self, name: str, gate: Gate, clock: ReplicaClock, source: random.Random, cluster: Callable[["ReplicaProcess"], Cluster]
    ) -> None:
        self.name = name
        self.clock = clock
        self._gate = gate
        self._source = source
        self._cluster = cluster
        self.boots = 0
        self.owner = Owner(name)
        self.line = Line(name, source)
        self.dead = True
        self.cluster_away = False
        self.wired: Wired | None = None

    @property
    def up(self) -> bool:
        return not self.dead

    def boot(self) -> None:
        assert self.dead
        self.boots += 1
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.owner, self.dead = Owner(f"{self.name}.{self.boots}"), False
        before, self.line = self.line, self._gate.line(self.name, self._source)
        self.line.away, self.line.slow, self.line.flaky = before.away, before.slow, before.flaky
        start(self.owner, self._run(), name="run")

    async def _run(self) -> None:
        mark = Mark()
        store, duties = SimStore(self._gate, self.line, mark, 8), SimStore(self._gate, self.line, mark, 4)
        ids = Ids(random.Random(f"{self._source.random()}"))
        url = f"http://{self.name}"
        self.wired = wire(store, self._cluster(self), key=KEY, url=url, ids=ids, duties_store=duties, clock=self.clock)
        self.wired.replica.start()

    def crash(self) -> None:
        """End the replica as by SIGKILL. The ports are cut first, so that no `finally` can write."""
        if self.dead:
            return
        self.dead, self.line.cut, self.wired = True, True, None
        if self.line in self._gate.lines:
            self._gate.lines.remove(self.line)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.resume(self.owner)
        for task in list(self.owner.tasks):
            task.cancel()

    def did_something(self) -> None:
        """Runs after an effect on the cluster, before its caller gets the answer."""
        if self.line.after_effect is not None:
            self.line.after_effect()

    async def stop(self) -> None:
        """End the replica as by SIGTERM: waiting requests are answered, and terms are given back."""
        wired = self.wired
        if wired is None or self.dead:
            return
        wired.context.signals.stop()
        await asyncio.wait([start(self.owner, wired.replica.stop())], timeout=5)
        self.crash()

    def pause(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.pause(self.owner)

    def resume(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.resume(self.owner)

    async def request(self, method: str, path: str, token: str, body: Any = None, query: str = "") -> SimResponse:
        """Send one HTTP request, which a task of the replica serves."""
        if self.dead or self.wired is None:
            raise Unreachable(f"{self.name} is not running")
        serving = start(self.owner, self._serve(self.wired, method, path, token, body, query), name=f"{method} {path}")
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT):
                await asyncio.wait([serving])
        except TimeoutError:
            raise Unreachable("no answer") from None
        finally:
            if not serving.done():
                serving.cancel()  # the caller disconnected
        if serving.cancelled():
            raise Unreachable(f"{self.name} died")
        answer: SimResponse = serving.result()
        return answer

    async def _serve(self, wired: Wired, method: str, path: str, token: str, body: Any, query: str) -> SimResponse:
        content = b"" if body is None else msgspec.json.encode(body)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"authorization", f"Bearer {token}".encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
            ],
            "server": (self.name, 80),
            "client": ("simulation", 1),
        }
        given, parts, status = False, [], 500

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await asyncio.get_running_loop().create_future()  # stay connected until the caller disconnects
            given = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await wired.app(scope, receive, send)  # type: ignore[arg-type]
        raw = b"".join(parts)
        return SimResponse(status, msgspec.json.decode(raw) if raw else None)
