"""Another user of the machine connects to the served process of a session, past its agent. Only the agent may get through."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from holdfast.agent.messages import Hooks
from holdfast.agent.session import Served, ServeEnded
from holdfast.local.isolation import no_namespaces, served_processes
from holdfast.model.pool import Pool, PoolSpec, WorkerSpec

NOBODY = 65534
SERVE_SOCKET = """
import os, socket
s = socket.socket(socket.AF_UNIX)
s.bind(os.environ['SOCKET'])
s.listen()
os.chmod(os.environ['SOCKET'], 0o777)  # as careless as a server can be
"""
SERVE_PORT = "import os, socket; s = socket.create_server(({host!r}, int(os.environ['PORT'])), family=socket.{family})"
ANSWERS = """
while True:
    c, _ = s.accept()
    try: c.sendall(b'hello')
    except OSError: pass  # the agent only looked whether the process listens
    c.close()
"""
AS_NOBODY = f"import os, socket, sys; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); "
CONNECT = AS_NOBODY + "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(5))"


@contextlib.asynccontextmanager
async def serving(folder: Path, listen: str, code: str, port: int = 8080) -> AsyncIterator[Served]:
    (folder / "work").mkdir(parents=True)
    folder.chmod(0o700)  # as the folder of a worker
    hooks = Hooks(serve=[sys.executable, "-S", "-c", code + ANSWERS], listen=listen, port=port)
    one = Served(hooks, folder, 10_000, "127.0.0.1", lambda _: None)
    try:
        await asyncio.wait_for(one.start(), 60)
        yield one
    finally:
        await one.stop()


async def greeting(one: Served) -> bytes:
    reader, writer = await one.upstream.connect()
    try:
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def sockets_run_out(one: Served) -> None:
    for _ in range(20):  # more than fit into the buffer
        with contextlib.suppress(ConnectionRefusedError):
            await one.upstream.connect()


def listeners(one: Served) -> list[int]:
    """Returns the ports of this machine on which the process listens."""
    assert one._group is not None
    found = psutil.Process(one._group._popen.pid).net_connections("tcp")
    return [each.laddr.port for each in found if each.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("long", [False, True], ids=["short path", "path that fits into no address"])
async def test_a_socket_is_open_to_the_agent_and_closed_to_other_users(tmp_path: Path, long: bool) -> None:
    folder = tmp_path / ("x" * 120 if long else "w")
    async with serving(folder, "socket", SERVE_SOCKET) as one:
        path = one.variables["SOCKET"]
        assert len(path) < 108
        assert (folder / "serve.sock").is_socket(), "the socket is in the worker's own folder"
        assert await greeting(one) == b"hello"
        assert listeners(one) == []
        if os.geteuid() != 0:
            pytest.skip("only root can act as another user")
        for folder_above in (tmp_path, *list(tmp_path.parents)[:-2]):
            folder_above.chmod(folder_above.stat().st_mode | 0o011)  # so that nothing but the worker's folder keeps others out
        path = path if not long else "serve.sock"  # another user cannot use the path through /proc at all
        attempt = subprocess.run([sys.executable, "-I", "-S", "-c", CONNECT, path], cwd=folder, capture_output=True, text=True)
        assert "PermissionError" in attempt.stderr, attempt
        assert attempt.stdout == ""


async def test_a_socket_that_an_earlier_process_left_does_not_stop_the_next(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "serve.sock").touch()
    async with serving(tmp_path / "w", "socket", SERVE_SOCKET) as one:
        assert await greeting(one) == b"hello"


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", "AF_INET"), ("::1", "AF_INET6")])
async def test_an_isolated_port_is_open_to_the_agent_only(tmp_path: Path, host: str, family: str) -> None:
    if reason := no_namespaces():
        pytest.skip(reason)
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)  # every port is free in a namespace
    port = taken.sockets[0].getsockname()[1]
    taken.close()
    async with (
        serving(tmp_path / "a", "isolated", SERVE_PORT.format(host=host, family=family), port) as one,
        serving(tmp_path / "b", "isolated", SERVE_PORT.format(host=host, family=family), port) as other,
    ):
        assert one.variables == {"PORT": str(port)}
        answers = await asyncio.gather(*(greeting(each) for each in (one, other) for _ in range(20)))
        assert set(answers) == {b"hello"}, "both listen on the same port of their own namespaces"
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection(host, port)


async def test_the_helper_in_the_namespace_ends_with_the_served_process(tmp_path: Path) -> None:
    if reason := no_namespaces():
        pytest.skip(reason)
    async with serving(tmp_path / "w", "isolated", SERVE_PORT.format(host="127.0.0.1", family="AF_INET")) as one:
        assert one._group is not None
        [helper] = psutil.Process(one._group._popen.pid).children()
        one.kill()
        with pytest.raises(ServeEnded):
            await asyncio.wait_for(one.died(), 60)
        with contextlib.suppress(psutil.NoSuchProcess):
            helper.wait(20)
        assert not helper.is_running()
        with pytest.raises(OSError, match="has ended"):
            await sockets_run_out(one)


async def test_a_command_that_is_missing_in_the_namespace_ends_as_in_a_shell(tmp_path: Path) -> None:
    if reason := no_namespaces():
        pytest.skip(reason)
    (tmp_path / "work").mkdir()
    one = Served(Hooks(serve=["no-such-command"], listen="isolated"), tmp_path, 1000, "127.0.0.1", lambda _: None)
    with pytest.raises(ServeEnded) as ended:
        await asyncio.wait_for(one.start(), 60)
    assert ended.value.code == 127
    assert "no-such-command: No such file" in (tmp_path / "serve.log").read_text()


async def test_an_agent_does_not_guess_where_a_process_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "work").mkdir()
    one = Served(Hooks(serve=["true"], listen="of a later release"), tmp_path, 1000, "127.0.0.1", lambda _: None)
    with pytest.raises(ServeEnded) as ended:
        await one.start()
    assert ended.value.code == 126
    assert "worker.listen 'of a later release'" in capsys.readouterr().err


def pool(name: str, mode: str, listen: str | None) -> Pool:
    spec = PoolSpec(mode=mode, worker=WorkerSpec(listen=listen))  # type: ignore[arg-type]
    return Pool(id=name, name=name, spec=spec, revision="r", state="live", source="api", created_at=0.0)


def test_doctor_names_the_pools_whose_processes_every_local_user_can_reach() -> None:
    found = served_processes([pool("old", "session", None), pool("new", "session", "socket"), pool("jobs", "job", None)])
    assert (found.promise, found.ok) == ("P1", False)
    assert found.detail.startswith("pools without worker.listen: old: every user of this machine can connect")
    assert "worker.listen: socket" in found.advice
    assert "worker.listen: isolated" in found.advice or "isolated is not possible here" in found.advice


def test_doctor_passes_if_the_operator_accepted_an_open_port_and_still_says_so() -> None:
    found = served_processes([pool("open", "session", "port"), pool("new", "session", "isolated")])
    assert (found.ok, found.advice) == (True, "")
    assert found.detail.startswith("accepted by worker.listen: port in open: every user")
    assert served_processes([pool("new", "session", "socket")]).detail == ""
