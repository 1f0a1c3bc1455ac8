"""The one seam to Postgres: a pool of connections, named statements, and errors that say what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import asyncpg

from ..ports.recovery import Mark
from ..ports.store import StoreUnavailable, Unstorable
from .rendering import asking, functions_schema, render

# A statement that takes longer than this is a fault, not a load: the caller hears 503 and may ask again.
STATEMENT_SECONDS = 10.0
CONNECT_SECONDS = 5.0
# lock_timeout below statement_timeout: who waits for a row hears so before it is cut off.
SETTINGS = {"statement_timeout": "10s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "10s", "jit": "off"}

UNAVAILABLE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a pooled connection that was just told of the shutdown
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.InvalidTransactionStateError,
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.exceptions.LockNotAvailableError,
)


# The schema is not there (any more): restored to before this release, or never migrated. It is made again.
MISSING = (
    asyncpg.exceptions.InvalidSchemaNameError,
    asyncpg.exceptions.UndefinedFunctionError,
    asyncpg.exceptions.UndefinedTableError,
)

# Only a pooler in transaction mode says these: a statement was prepared on one server connection and used on another.
NOT_PREPARED = (asyncpg.exceptions.InvalidSQLStatementNameError, asyncpg.exceptions.DuplicatePreparedStatementError)


FIRST_OWN_TYPE = 10_000  # below, a type's number is part of Postgres itself
_KNOWN_TYPES: dict[frozenset[int], Any] = {}
_NAMED = SimpleNamespace(name="asked before")  # stands for the statement that asked, which took nobody's place


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that is not reset between uses: we keep no session state, and the reset costs a round trip."""

    def get_reset_query(self) -> str:
        return ""

    async def _introspect_types(self, typeoids: Collection[int], timeout: float) -> tuple[Any, Any]:
        """asyncpg asks each new connection what arrays of text and of numbers are: 40 ms of the server's CPU, and right when
        there is a rush or the server has just come back. The system's own types are the same on every server: asked once."""
        asked = frozenset(typeoids)
        found = _KNOWN_TYPES.get(asked)
        if found is None:
            found, statement = await super()._introspect_types(typeoids, timeout)
            if max(asked) < FIRST_OWN_TYPE:
                _KNOWN_TYPES[asked] = found
            return found, statement
        return found, _NAMED


class _Pooled(_Connection):
    """Each statement may meet another server connection: what is set there stays for whoever comes next, so nothing is."""

    _server_caps: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # asyncpg looks up array types once a connection, and turns jit off and on again around that: perhaps not on the same one.
        self._server_caps = self._server_caps._replace(jit=False)


class Database:
    """Runs statements, one at a time and each by itself: a transaction of several statements does not exist here."""

    def __init__(self, pool: asyncpg.Pool, dsn: str, mark: Mark, pooled: bool = False, pids: set[int] | None = None) -> None:
        self._pool = pool
        self.pids = set() if pids is None else pids  # of the server processes behind this replica's connections
        self.mark = mark
        self.pooled = pooled
        self.heal: Callable[[], Awaitable[object]] | None = None  # makes a missing schema again
        self.dsn = dsn
        self.functions = functions_schema()
        self._rendered: dict[str, str] = {}
        self.errors = 0

    @classmethod
    async def connect(
        cls, dsn: str, *, size: int = 8, pooled: bool = False, mark: Mark | None = None, pids: set[int] | None = None
    ) -> "Database":
        """`pooled`: behind PgBouncer in transaction mode, where statements cannot be kept prepared, nobody can listen, and
        these settings are the role's (docs/operations.md). The client's own limit holds there too: it cancels."""
        known = set() if pids is None else pids

        async def note_pid(connection: asyncpg.Connection) -> None:
            pid = connection.get_server_pid()
            known.add(pid)
            connection.add_termination_listener(lambda *_: known.discard(pid))

        try:
            pool = await asyncpg.create_pool(
                dsn,
                init=note_pid,
                min_size=1,
                max_size=size,
                connection_class=_Pooled if pooled else _Connection,
                command_timeout=STATEMENT_SECONDS,
                timeout=CONNECT_SECONDS,
                statement_cache_size=0 if pooled else 200,
                server_settings={} if pooled else SETTINGS,
                max_inactive_connection_lifetime=300,
            )
        except UNAVAILABLE as error:
            raise StoreUnavailable(_say(error)) from error
        return cls(pool, dsn, mark or Mark(), pooled, known)

    def sql(self, text: str) -> str:
        rendered = self._rendered.get(text)
        if rendered is None:
            rendered = self._rendered[text] = render(text, self.functions)
        return rendered

    async def rows(self, text: str, *args: object) -> list[asyncpg.Record]:
        try:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                return cast(list[asyncpg.Record], await connection.fetch(self.sql(text), *args))
        except (*UNAVAILABLE, *NOT_PREPARED) as error:
            self.errors += 1
            raise StoreUnavailable(_say(error)) from error
        except asyncpg.DataError as error:
            # The type alone: the text of the error repeats the value, which may be a secret.
            raise Unstorable(type(error).__name__) from None
        except MISSING as error:
            self.errors += 1
            if self.heal is not None:
                await self.heal()
            raise StoreUnavailable(_say(error)) from error

    async def row(self, text: str, *args: object) -> asyncpg.Record | None:
        found = await self.rows(text, *args)
        return found[0] if found else None

    async def value(self, text: str, *args: object) -> Any:
        found = await self.rows(text, *args)
        return found[0][0] if found else None

    async def act(self, text: str, *args: object) -> list[asyncpg.Record]:
        """Runs a statement that gives out, spawns or ends something. Its word `@acting` becomes the question whether that is
        allowed, which is asked with the mark that this process has seen (functions/recovery.sql `acting`)."""
        return await self.rows(asking(text, len(args)), *args, self.mark.value)

    async def act_value(self, text: str, *args: object) -> Any:
        found = await self.act(text, *args)
        return found[0][0] if found else None

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), 3)
        except (TimeoutError, *UNAVAILABLE):
            self._pool.terminate()


def _say(error: BaseException) -> str:
    if isinstance(error, NOT_PREPARED) or "unsupported startup parameter" in str(error):
        return "the DSN leads through PgBouncer: start with --pooled"
    # By type: the text of an error may echo what users sent.
    return f"the store is not available ({type(error).__name__})"
