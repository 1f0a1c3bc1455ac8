"""Run statements in Postgres: a pool of connections, rendered statements, and errors that name what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import msgspec

from ..model.event import Actor
from ..ports.recovery import Mark
from ..ports.store import StoreUnavailable, Unstorable
from .rendering import asking, functions_schema, render

# A statement that takes longer than this is a fault, not load. The caller gets 503 and may try again.
STATEMENT_SECONDS = 10.0
CONNECT_SECONDS = 5.0
# lock_timeout is below statement_timeout, so that a statement that waits for a row fails with a lock error.
SETTINGS = {"statement_timeout": "10s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "10s", "jit": "off"}

UNAVAILABLE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a pooled connection that has just received the server's shutdown
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.InvalidTransactionStateError,
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.exceptions.LockNotAvailableError,
)


# The schema is missing, because the database was restored to before this release or was never migrated. It is created again.
MISSING = (
    asyncpg.exceptions.InvalidSchemaNameError,
    asyncpg.exceptions.UndefinedFunctionError,
    asyncpg.exceptions.UndefinedTableError,
)

# Only a pooler in transaction mode causes these: a statement was prepared on one server connection and used on another.
NOT_PREPARED = (asyncpg.exceptions.InvalidSQLStatementNameError, asyncpg.exceptions.DuplicatePreparedStatementError)


FIRST_OWN_TYPE = 10_000  # types with a lower OID are built into Postgres
_KNOWN_TYPES: dict[frozenset[int], Any] = {}
# Stands for the statement of the lookup. It has a name, because after an unnamed statement asyncpg would prepare the query again.
_NAMED = SimpleNamespace(name="cached")


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that is not reset between uses, because we keep no session state and the reset costs a round trip."""

    def get_reset_query(self) -> str:
        return ""

    async def _introspect_types(self, typeoids: Collection[int], timeout: float) -> tuple[Any, Any]:
        """Returns the definitions of the types, and caches those of built-in types, which are the same on every server. asyncpg
        looks up array types on each new connection, which costs 40 ms of the server's CPU just when load is high or the server
        has just come back."""
        wanted = frozenset(typeoids)
        found = _KNOWN_TYPES.get(wanted)
        if found is None:
            found, statement = await super()._introspect_types(typeoids, timeout)
            if max(wanted) < FIRST_OWN_TYPE:
                _KNOWN_TYPES[wanted] = found
            return found, statement
        return found, _NAMED


class _Pooled(_Connection):
    """A connection through PgBouncer. It changes no session setting, because each statement may run on another server connection,
    and the setting would stay there for other clients."""

    _server_caps: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Otherwise asyncpg would turn jit off and on again around its lookup of types, perhaps on two server connections.
        self._server_caps = self._server_caps._replace(jit=False)


class Database:
    """Runs statements, each in its own transaction. There are no transactions of several statements."""

    def __init__(self, pool: asyncpg.Pool, dsn: str, mark: Mark, pooled: bool = False, pids: set[int] | None = None) -> None:
        self._pool = pool
        self.pids = set() if pids is None else pids  # the server processes of this replica's connections
        self.mark = mark
        self.pooled = pooled
        self.heal: Callable[[], Awaitable[object]] | None = None  # creates a missing schema again
        self.dsn = dsn
        self.functions = functions_schema()
        self._rendered: dict[str, str] = {}
        self.errors = 0

    @classmethod
    async def connect(
        cls, dsn: str, *, size: int = 8, pooled: bool = False, mark: Mark | None = None, pids: set[int] | None = None
    ) -> "Database":
        """Connects to the DSN. `pooled` means through PgBouncer in transaction mode: statements cannot stay prepared, connections
        cannot listen, and SETTINGS must be set for the role (docs/operations.md). The client's own timeout works there as well,
        because it cancels the statement."""
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
            raise StoreUnavailable(_unavailable_text(error)) from error
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
            raise StoreUnavailable(_unavailable_text(error)) from error
        except asyncpg.DataError as error:
            # Only the type, because the text of the error contains the value, which may be a secret.
            raise Unstorable(type(error).__name__) from None
        except MISSING as error:
            self.errors += 1
            if self.heal is not None:
                await self.heal()
            raise StoreUnavailable(_unavailable_text(error)) from error

    async def row(self, text: str, *args: object) -> asyncpg.Record | None:
        found = await self.rows(text, *args)
        return found[0] if found else None

    async def value(self, text: str, *args: object) -> Any:
        found = await self.rows(text, *args)
        return found[0][0] if found else None

    async def act(self, text: str, *args: object) -> list[asyncpg.Record]:
        """Runs a statement that gives out, spawns or ends something. `@acting` in it becomes a call of `acting`
        (functions/recovery.sql), which checks with the highest mark that this process has seen whether that is allowed."""
        return await self.rows(asking(text, len(args)), *args, self.mark.value)

    async def act_value(self, text: str, *args: object) -> Any:
        found = await self.act(text, *args)
        return found[0][0] if found else None

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), 3)
        except (TimeoutError, *UNAVAILABLE):
            self._pool.terminate()


def actor_json(actor: Actor | None) -> str | None:
    """Returns who caused a change, as the statements take it."""
    return None if actor is None else msgspec.json.encode(actor).decode()


def _unavailable_text(error: BaseException) -> str:
    if isinstance(error, NOT_PREPARED) or "unsupported startup parameter" in str(error):
        return "the DSN leads through PgBouncer: start with --pooled"
    # Only the type, because the text of an error may contain what users sent.
    return f"the store is not available ({type(error).__name__})"
