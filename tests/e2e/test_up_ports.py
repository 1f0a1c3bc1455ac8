"""`holdfast up` and ports that are taken: it names the port before anything starts, and sends its token to no other program."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_up import Machine, machine  # noqa: F401 - a fixture

from fleet import free_ports
from holdfast.local.listening import PortTaken, check_free
from holdfast.up import Plan, Up
from waiting import eventually


class Stranger:
    """A program that listens on a port, takes every connection, and keeps what it receives."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, family: int = socket.AF_INET) -> None:
        self.socket = socket.create_server((host, port), family=family, dualstack_ipv6=family == socket.AF_INET6)
        self.port = self.socket.getsockname()[1]
        self.received: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
                with connection:
                    self.received.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            except OSError:
                return

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    made = Stranger()
    yield made
    made.close()


@pytest.mark.parametrize("replica", [0, 1])
def test_up_on_a_taken_port_names_it_before_postgres_starts_and_sends_nothing(
    tmp_path: Path, stranger: Stranger, replica: int
) -> None:
    port, data = stranger.port - replica, tmp_path / "data"
    code, err = _refused("--data-dir", str(data), "--port", str(port), "--replicas", "2")
    expected = (
        f"holdfast: port {stranger.port} on 127.0.0.1 cannot be used (Address already in use);"
        " free it, or choose another with --port\n"
    )
    assert (code, err) == (1, expected)
    assert not (data / "postgres").exists()
    assert not (data / "servers").exists()
    assert stranger.received == []


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)]
)
@pytest.mark.parametrize("ours", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_port_is_taken_whatever_address_the_other_program_listens_on(host: str, family: int, ours: str) -> None:
    other = Stranger(host, family=family)
    try:
        with pytest.raises(PortTaken, match=f"port {other.port} on {ours}"):
            check_free(ours, other.port)
    finally:
        other.close()
    check_free(ours, other.port)


def test_a_port_that_another_program_takes_later_never_receives_the_token(stranger: Stranger, tmp_path: Path) -> None:
    """The other program takes the port after the check, so the replica of `up` does not listen on its socket either."""

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Up(Plan(tmp_path, stranger.port)).listening(), 1)

    asyncio.run(wait())
    assert stranger.received == []


def test_up_with_more_replicas_than_ports_above_it_is_refused(tmp_path: Path) -> None:
    code, err = _refused("--data-dir", str(tmp_path / "data"), "--port", "65535", "--replicas", "2")
    assert code == 2
    assert "--port 65535 is too high for 2 replicas" in err
    assert not (tmp_path / "data").exists()


def test_up_after_a_killed_up_waits_for_the_replica_that_still_ends(machine: Machine) -> None:  # noqa: F811
    machine.up()
    assert machine.process is not None
    machine.process.send_signal(signal.SIGKILL)
    machine.process.wait(60)
    machine.log.unlink()
    machine.up()
    assert machine.api("GET", "/v1/pools")[0] == 200


def test_a_second_up_with_another_port_does_not_send_the_agents_of_the_first_elsewhere(machine: Machine) -> None:  # noqa: F811
    machine.up()
    sockets = (machine.data / "sockets").read_text()
    assert _refused("--data-dir", str(machine.data), "--port", str(free_ports(1)[0]))[0] == 1
    assert (machine.data / "sockets").read_text() == sockets
    eventually(lambda: machine.api("GET", "/v1/pools")[0] == 200, 10)


def _refused(*options: str) -> tuple[int, str]:
    """Returns exit code and message of an `up` that must end by itself. One that does not is stopped in order, so that the test
    leaves no Postgres behind."""
    arguments = [sys.executable, "-m", "holdfast", "up", *options]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return process.returncode, err
