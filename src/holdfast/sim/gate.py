"""Carry a replica's statements to Postgres, with delays, lost answers and outages. They run one by one, in the seed's order."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from ..ports.recovery import Mark
from ..postgres.database import CONNECT_SECONDS, STATEMENT_SECONDS, Database
from ..postgres.notices import Kind
from ..postgres.store import PostgresStore
from .loop import later
from .server import Postgres

NAME = re.compile(r"holdfast_[0-9a-f]{8}\.(?!acting\()(\w+)\(|\b(INSERT INTO|UPDATE|DELETE FROM|FROM) holdfast\.(\w+)")


def name_of(sql: str) -> str:
    """Returns a short name of the statement, for the trace."""
    found = NAME.search(sql)
    if found is None:
        return "select"
    return found[1] or f"{found[2].split()[0].lower()} {found[3]}"


class Line:
    """One replica's connections to Postgres, and their current faults."""

    def __init__(self, name: str, source: random.Random) -> None:
        self.name = name
        self.source = source
        self.cut = False  # the replica is dead, so it sends nothing
        self.away = False  # it cannot reach Postgres
        self.slow = 0.002  # seconds at most, per direction
        self.flaky = 0.0  # share of statements whose connection breaks, before or after they took effect
        self.after_effect: Callable[[], None] | None = None  # called after each statement, before its answer is sent
        self.hears: asyncio.Queue[tuple[Kind, list[str]]] | None = None


class Gate:
    def __init__(self, postgres: Postgres, clock: Callable[[], float]) -> None:
        self.postgres = postgres
        self.clock = clock  # the database's clock, which may jump
        self.down = False
        self.lines: list[Line] = []
        self.ran: Callable[[Line, str, list[asyncpg.Record] | BaseException], None] | None = None
        self.statements = 0
        self._travelling: dict[asyncio.Future[Any], None] = {}

    def line(self, name: str, source: random.Random) -> Line:
        line = Line(name, source)
        self.lines.append(line)
        return line

    async def fetch(self, line: Line, sql: str, args: tuple[object, ...]) -> list[asyncpg.Record]:
        if line.cut:
            raise asyncio.CancelledError
        answer: asyncio.Future[list[asyncpg.Record]] = asyncio.get_running_loop().create_future()
        later(line.source.random() * line.slow, lambda: self._arrive(line, sql, args, answer))
        return await asyncio.wait_for(answer, STATEMENT_SECONDS)

    def _arrive(self, line: Line, sql: str, args: tuple[object, ...], answer: asyncio.Future[list[asyncpg.Record]]) -> None:
        if self.down or line.away:
            # Refuse the connection, or do not answer until the client gives up.
            if line.source.random() < 0.8:
                _tell(answer, ConnectionRefusedError("simulated"))
            return
        breaks = line.source.random() if line.flaky else 1.0
        if breaks < line.flaky / 2:
            _tell(answer, asyncpg.exceptions.ConnectionDoesNotExistError("simulated: before it took effect"))
            return
        self.statements += 1
        result: list[asyncpg.Record] | BaseException
        try:
            result = self.postgres.ask(self.clock(), sql, *args)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            result = error
        self._spread(line, list(self.postgres.heard))
        if self.ran is not None:
            self.ran(line, sql, result)
        if line.after_effect is not None:
            line.after_effect()
        if breaks < line.flaky:
            result = asyncpg.exceptions.ConnectionDoesNotExistError("simulated: after it took effect")
        self._travelling[answer] = None
        later(line.source.random() * line.slow, lambda: self._deliver(answer, result))

    def _deliver(self, answer: asyncio.Future[list[asyncpg.Record]], result: list[asyncpg.Record] | BaseException) -> None:
        self._travelling.pop(answer, None)
        _tell(answer, result)

    def go_down(self) -> None:
        """Stop Postgres. Answers in transit are lost, although their statements took effect."""
        self.down = True
        for answer in self._travelling:
            _tell(answer, asyncpg.exceptions.ConnectionDoesNotExistError("simulated: the server went away"))
        self._travelling.clear()
        self.deafen()

    def deafen(self) -> None:
        """Break the connections that listen. Notifications until they reconnect are lost."""
        for line in self.lines:
            if line.hears is not None:
                queue = line.hears
                later(0.5 + line.source.random(), lambda queue=queue: queue.put_nowait(("reset", [])))  # type: ignore[misc]

    def _spread(self, own: Line, payloads: list[str]) -> None:
        for payload in payloads:
            kind, _, ids = payload.partition(" ")
            for line in self.lines:
                if kind == "c" and line is own:
                    continue  # as in PostgresNotices, because the replica that made the change signals it itself
                if line.hears is None or line.cut or line.away or line.source.random() < line.flaky:
                    continue
                heard: Any = (kind, ids.split(" "))
                later(line.source.random() * line.slow, lambda queue=line.hears, heard=heard: queue.put_nowait(heard))  # type: ignore[misc]


def _tell(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class Connection:
    def __init__(self, gate: Gate, line: Line) -> None:
        self._gate = gate
        self._line = line

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        return await self._gate.fetch(self._line, sql, args)


class ConnectionPool:
    """Has as many connections as the real pool. A caller waits if all are in use, and may time out."""

    def __init__(self, gate: Gate, line: Line, size: int) -> None:
        self._connection = Connection(gate, line)
        self._free = asyncio.Semaphore(size)

    @asynccontextmanager
    async def acquire(self, timeout: float = CONNECT_SECONDS) -> AsyncIterator[Connection]:
        async with asyncio.timeout(timeout):
            await self._free.acquire()
        try:
            yield self._connection
        finally:
            self._free.release()

    async def close(self) -> None:
        pass

    def terminate(self) -> None:
        pass


class SimNotices:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._queue: asyncio.Queue[tuple[Kind, list[str]]] = asyncio.Queue()
        line.hears = self._queue
        self._queue.put_nowait(("reset", []))

    def __aiter__(self) -> "SimNotices":
        return self

    async def __anext__(self) -> tuple[Kind, list[str]]:
        return await self._queue.get()

    async def close(self) -> None:
        self._line.hears = None


class SimStore(PostgresStore):
    """The real store. Only its connections are simulated."""

    def __init__(self, gate: Gate, line: Line, mark: Mark, size: int) -> None:
        super().__init__(Database(ConnectionPool(gate, line, size), "", mark))
        self._line = line

    async def listen(self) -> Any:
        return SimNotices(self._line)
