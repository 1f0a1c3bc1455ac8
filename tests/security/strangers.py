"""Raw connections of clients that have no token, or do not behave as HTTP clients do."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from served_api import Stage

GET = b"GET /healthz HTTP/1.1\r\nHost: h\r\n"
TOKEN = b"Authorization: Bearer admin\r\n"
POST = b"POST /v1/claims HTTP/1.1\r\nHost: h\r\n"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


@contextlib.contextmanager
def crowd(port: int, size: int) -> Iterator[list[socket.socket]]:
    """Opens connections that send nothing."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(port)) for _ in range(size)]


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Returns the status and the body of the next answer, or (0, b"") if the server closed the connection instead."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while b"\r\n\r\n" not in received:
            if not (piece := connection.recv(65536)):
                return 0, b""
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += connection.recv(65536)
        return int(head.split()[1]), body
    return 0, b""


def ended(connection: socket.socket) -> bool:
    """Waits until the server has closed the connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.settimeout(60)


def greeted(stage: Stage, token: str = "admin") -> socket.socket:
    """Returns a connection on which a request with a valid token was answered."""
    connection = connect(stage.port)
    assert greet(connection, token) == 200
    return connection


def greet(connection: socket.socket, token: str) -> int:
    connection.sendall(GET + f"Authorization: Bearer {token}\r\n\r\n".encode())
    return read_answer(connection)[0]


def memory() -> int:
    """Returns how many bytes this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
