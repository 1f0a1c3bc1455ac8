"""Judges mutants in one process: collects the tests once, then forks for each mutant and runs the tests that reach it.

A lane works on its own copy of the product and on its own Postgres server, which stays up. A fork starts with everything
imported and collected, so that a mutant costs little more than the tests that it needs.
"""

import asyncio
import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .targets import JUDGES, MODULES, POSTGRES, words

# A function has a row here once it was called, but its count stays 0 while the connection that called it is still open.
CALLED = """
SELECT funcname, greatest(1, sum(calls))::integer FROM pg_stat_user_functions WHERE schemaname LIKE 'holdfast\\_%' GROUP BY 1
"""
SERVER_FOLDER = "HOLDFAST_TEST_POSTGRES"  # read by tests/conftest.py
# SQLSTATEs with which Postgres refuses a mutant at its first use: syntax, types, names, grouping. Such a mutant cannot run.
REFUSED = {"42601", "42804", "42883", "42703", "42702", "42803", "42846", "42P18", "42P10", "42809", "42P08", "42725", "42P13"}


def lane(copy: Path, pipe: Connection) -> None:
    """Serves requests from the pipe until it closes. Runs in its own process."""
    sys.path.insert(0, str(copy / "src"))
    os.environ["PYTHONPATH"] = str(copy / "src")  # for processes that the tests start
    # In memory if possible, because tests spend most of their time waiting for the disk, and no data here must survive a crash.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="hf-mutation-", dir=memory if os.access(memory, os.W_OK) else None))
    folder.chmod(0o755)
    os.environ[SERVER_FOLDER] = str(folder / "postgres")
    import pytest
    from hypothesis.configuration import set_hypothesis_home_dir

    from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries

    set_hypothesis_home_dir(folder / "hypothesis")
    server = EmbeddedPostgres(folder / "postgres", find_binaries())
    server.start()
    try:
        asyncio.run(_ask(server.dsn, "ALTER SYSTEM SET track_functions = 'all'", "SELECT pg_reload_conf()"))
        with open(copy / "pytest.log", "w") as log:  # the output of pytest is not needed here
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            judge = Judge(copy, pipe, server.dsn)
            options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=no", "-rN", "-c", "pyproject.toml")
            pytest.main([*options, *JUDGES], plugins=[judge])
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Judge:
    """A pytest plugin that takes the place of the loop over tests."""

    def __init__(self, copy: Path, pipe: Connection, dsn: str) -> None:
        self._copy, self._pipe, self._dsn = copy, pipe, dsn
        self._errors: list[str] = []
        self._sent: dict[str, set[str]] = {}
        self._counts: dict[str, int] = {}
        self._called: dict[str, int] = {}
        self._tracing = False
        self._words = words(copy)
        self._failed = ""

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._pipe.send(sorted(items))
        while (request := self._receive()) is not None:
            kind, argument = request
            if kind == "trace":
                answer = self._forked(partial(self._trace, [items[test] for test in argument]), 1800)
            else:
                path, text, tests, seconds = argument
                original = (self._copy / path).read_text()
                (self._copy / path).write_text(text)
                answer = self._forked(partial(self._judge, [items[test] for test in tests], path), seconds)
                (self._copy / path).write_text(original)
            asyncio.run(_sweep(self._dsn))
            self._pipe.send(answer)
        return True

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            return None

    def _forked(self, work: Any, seconds: float) -> dict[str, Any]:
        """Runs some work in a fork and returns its answer. A fork that takes too long is ended, with all its processes."""
        began, (inlet, outlet) = time.monotonic(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            answer: dict[str, Any] = {"verdict": "broken"}
            try:
                answer = work()
            finally:
                with os.fdopen(outlet, "w") as pipe:
                    json.dump(answer, pipe)
                os._exit(0)
        os.close(outlet)
        with os.fdopen(inlet) as pipe:
            if select.select([pipe], [], [], seconds)[0]:
                words = pipe.read()
                answer = json.loads(words) if words else {"verdict": "killed", "by": "the test process ended"}
            else:
                answer = {"verdict": "killed", "by": f"nothing came within {seconds:.0f} s"}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return answer | {"seconds": round(time.monotonic() - began, 2)}

    def _judge(self, items: list[Any], path: str) -> dict[str, Any]:
        self._watch_errors()
        if path.endswith(".py"):
            for module in (Path(path).stem, *MODULES):  # the second round sets constants that other modules read
                importlib.reload(sys.modules[f"holdfast.postgres.{module}"])
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._errors.clear()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                verdict = "invalid" if REFUSED.intersection(self._errors) else "killed"
                return {"verdict": verdict, "by": self._failed}
        return {"verdict": "survived", "tests": len(items)}

    def _trace(self, items: list[Any]) -> dict[str, Any]:
        """Returns for each test its seconds and the statements that it sent."""
        self._watch_errors()
        self._tracing, found = True, {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._failed, self._called = "", {}
            self._sent.clear()
            self._counts.clear()
            began = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            took = round(time.monotonic() - began, 2)
            sent = {text: sorted(shapes) for text, shapes in self._sent.items()}
            more = {"counts": dict(self._counts), "called": self._called, "failed": self._failed}
            found[item.nodeid] = {"seconds": took, "sent": sent} | more
        return {"verdict": "traced", "tests": found}

    def pytest_runtest_call(self, item: Any) -> None:
        """Forgets which functions earlier tests called, because all tests use one database."""
        if self._tracing and "dsn" in getattr(item, "funcargs", {}):
            asyncio.run(_ask(item.funcargs["dsn"], "SELECT pg_stat_reset()"))

    def pytest_runtest_teardown(self, item: Any) -> None:
        """Records which functions ran in a test and how often, before the database is emptied."""
        if self._tracing and "dsn" in getattr(item, "funcargs", {}):
            self._called = {row[0]: row[1] for row in asyncio.run(_ask(item.funcargs["dsn"], CALLED))}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed = report.nodeid

    def _watch_errors(self) -> None:
        """Records every statement and the SQLSTATE of every error of the server, including errors that a test expects."""
        import asyncpg

        from holdfast.postgres.database import Database

        rows = Database.rows

        async def noted(database: Any, text: str, *args: object) -> Any:
            try:
                found = await rows(database, text, *args)
            except Exception as error:
                self._sent.setdefault(text, set()).add(type(error).__name__)
                raise
            self._sent.setdefault(text, set()).add(_shape(args, found, self._words))
            self._counts[text] = self._counts.get(text, 0) + 1
            return found

        made = asyncpg.PostgresError.new

        def new(fields: dict[str, str], query: str | None = None) -> Any:
            self._errors.append(fields.get("C", ""))
            return made(fields, query)

        Database.rows = noted  # type: ignore[method-assign]
        asyncpg.PostgresError.new = new


def _shape(args: tuple[object, ...], found: list[Any], words: set[str]) -> str:
    """Returns the kind of a call: which arguments were absent, flags or words of the SQL, how many rows came back, and the first
    word."""
    flags = "".join(_flag(arg) for arg in args)
    named = sorted(arg for arg in args if isinstance(arg, str) and arg in words)
    values = sorted({str(value) for row in found[:3] for value in row if value is None or isinstance(value, bool)})
    first = found[0][0] if found and isinstance(found[0][0], str) and "-" not in found[0][0] else ""
    return f"{flags} {named} {min(len(found), 2)} {values} {first}"


def _flag(arg: object) -> str:
    if arg is None or isinstance(arg, bool):
        return {None: "0", True: "t", False: "f"}[arg]
    return "e" if arg in ([], "", 0, "[]") else "x"


async def _ask(dsn: str, *statements: str) -> list[Any]:
    """Returns the rows of the last statement."""
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            rows = await connection.fetch(statement)
        return list(rows)
    finally:
        await connection.close()


async def _sweep(dsn: str) -> None:
    """Drops what a fork left behind, because a fork ends without tearing down its fixtures."""
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        names = "SELECT datname FROM pg_database WHERE datname NOT IN ('holdfast', 'postgres', 'template0', 'template1')"
        for row in await connection.fetch(names):
            await connection.execute(f'DROP DATABASE "{row[0]}" WITH (FORCE)')
        roles = "SELECT rolname FROM pg_roles WHERE rolname NOT LIKE 'pg\\_%' AND rolname <> current_user"
        for row in await connection.fetch(roles):
            await connection.execute(f'DROP ROLE "{row[0]}"')
    finally:
        await connection.close()


def original(root: Path, copy: Path) -> None:
    """Puts a fresh copy of the product into a folder."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    assert (copy / POSTGRES).is_dir()
