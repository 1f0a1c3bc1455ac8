"""The served process of a session: its port, its address, its output, its reset and its end."""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import session
from holdfast.agent.activation import HookFailed
from holdfast.agent.messages import Hooks
from holdfast.agent.session import Served, ServeEnded, free_port
from holdfast.agent.sink import Sink
from holdfast.agent.upstream import Port

LISTENS = "import os, socket, time; s = socket.create_server(('127.0.0.1', int(os.environ['PORT']))); print('up', flush=True); "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def served(folder: Path, own: str = "127.0.0.1", **hooks: Any) -> Served:
    return Served(Hooks(**hooks), folder, 1000, own, lambda _: None)


def address_of(one: Served) -> tuple[str, int]:
    """Returns where it answered."""
    assert isinstance(one.upstream, Port)
    [host] = one.upstream.hosts
    return host, one.upstream.port


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_numbers_of_a_session_are_the_documented_ones() -> None:
    assert (session.RESET_SECONDS, session.STOP_SECONDS, session.LOOK_SECONDS) == (60.0, 3.0, 0.05)


async def test_a_served_process_gets_a_port_and_is_warm_when_it_answers(folder: Path) -> None:
    one = served(folder, serve=python(LISTENS + "time.sleep(600)"))
    await asyncio.wait_for(one.start(), 60)
    try:
        address = address_of(one)
        assert one.environment()["PORT"] == str(address[1])
        with socket.create_connection(address, timeout=60):
            pass
        with pytest.raises(OSError, match="in use"), contextlib.closing(socket.socket(socket.AF_UNIX)) as other:
            other.bind(f"\0holdfast-port-{address[1]}")
    finally:
        await one.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, timeout=60)


async def test_a_served_process_that_dies_before_it_answers_says_with_which_code(folder: Path) -> None:
    with pytest.raises(ServeEnded, match="serve exited with 3") as ended:
        await asyncio.wait_for(served(folder, serve=["sh", "-c", "exit 3"]).start(), 60)
    assert ended.value.code == 3


async def test_a_command_that_does_not_exist_ends_as_in_a_shell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ServeEnded) as ended:
        await served(folder, serve=["no-such-command"]).start()
    assert ended.value.code == 127
    assert "no-such-command: not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("own", "hosts"),
    [("127.0.0.1", ("127.0.0.1", "::1")), ("::1", ("127.0.0.1", "::1")), ("10.1.2.3", ("127.0.0.1", "::1", "10.1.2.3"))],
)
def test_another_container_may_listen_on_the_pods_own_address(folder: Path, own: str, hosts: tuple[str, ...]) -> None:
    for one, expected in ((served(folder, own), hosts), (served(folder, own, serve=["true"]), ("127.0.0.1", "::1"))):
        assert isinstance(one.upstream, Port)
        assert one.upstream.hosts == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_another_container_is_found_where_it_listens(folder: Path, host: str) -> None:
    try:
        other = await asyncio.start_server(lambda *_: None, host, 0)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    port = other.sockets[0].getsockname()[1]
    one = served(folder, port=port)
    await asyncio.wait_for(one.start(), 60)
    assert address_of(one) == (host, port)
    other.close()
    one.kill()  # there is no process to kill or to stop
    await one.stop()


async def test_another_container_that_starts_later_is_waited_for(folder: Path) -> None:
    port, mark = free_port()
    one = served(folder, port=port)
    starting = asyncio.create_task(one.start())
    await asyncio.sleep(0.2)
    assert not starting.done()
    other = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    await asyncio.wait_for(starting, 60)
    other.close()
    if mark is not None:
        mark.close()


async def test_the_end_of_another_container_is_not_for_the_agent_to_notice(folder: Path) -> None:
    dying = asyncio.create_task(served(folder, port=1).died())
    await asyncio.sleep(0.05)
    assert not dying.done()
    dying.cancel()


async def test_the_end_of_the_served_process_is_noticed(folder: Path) -> None:
    gate = folder / "gate"
    wait = f"\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nraise SystemExit(5)"
    one = served(folder, serve=python(LISTENS + wait))
    await asyncio.wait_for(one.start(), 60)
    gate.touch()
    with pytest.raises(ServeEnded) as ended:
        await asyncio.wait_for(one.died(), 60)
    assert ended.value.code == 5
    assert (folder / "serve.log").read_text() == "up\n"


async def test_a_served_process_can_be_killed_without_a_wait(folder: Path) -> None:
    one = served(
        folder, serve=python("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LISTENS + "time.sleep(600)")
    )
    await asyncio.wait_for(one.start(), 60)
    one.kill()
    with pytest.raises(ServeEnded) as ended:
        await asyncio.wait_for(one.died(), 60)
    assert ended.value.code == 137


def test_output_belongs_to_the_claim_that_is_served_and_otherwise_to_the_worker(folder: Path) -> None:
    one, first, second = served(folder), Sink(folder / "c-1", 1000), Sink(folder / "c-2", 1000)
    one.keep_output(b"before ")
    one.output_to(first)
    one.keep_output(b"first")
    one.output_to(second)
    one.keep_output(b"second")
    one.output_to(None)
    one.keep_output(b"after")
    assert [(folder / name).read_bytes() for name in ("serve.log", "c-1", "c-2")] == [b"before after", b"first", b"second"]
    assert (first._file, second._file) == (None, None), "an output that is not written any more is closed"


async def test_a_reset_knows_port_and_tenant_and_its_output_is_the_workers(folder: Path) -> None:
    one = served(folder, port=81, reset=["sh", "-c", "echo $PORT $HOLDFAST_TENANT"])
    await one.reset("acme")
    assert (folder / "serve.log").read_text() == "81 acme\n"
    await served(folder).reset("acme")  # a pool without a reset hook


async def test_a_reset_that_hangs_or_fails_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HookFailed, match="reset exited with 3"):
        await served(folder, reset=["sh", "-c", "exit 3"]).reset("acme")
    monkeypatch.setattr(session, "RESET_SECONDS", 0.1)
    with pytest.raises(HookFailed, match=r"reset took longer than 0\.1 s"):
        await served(folder, reset=["sleep", "600"]).reset("acme")


def test_a_port_that_another_agent_has_reserved_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other agent's process may not listen yet, so the port itself looks free."""
    port, mark = free_port()
    if mark is None:
        pytest.skip("only Linux can reserve a port among agents")
    real = socket.socket
    offered = iter([port, port])

    class Probe(real):  # type: ignore[valid-type, misc]
        def bind(self, address: Any) -> None:
            super().bind((address[0], next(offered, 0)) if isinstance(address, tuple) else address)

    monkeypatch.setattr(session.socket, "socket", Probe)
    other, second = free_port()
    assert other != port
    assert second is not None
    for each in (mark, second):
        each.close()


def test_a_system_without_abstract_names_reserves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.sys, "platform", "darwin")
    port, mark = free_port()
    assert (port > 0, mark) == (True, None)
