"""The ways to connect to a served process: a TCP port, a unix socket, or a port in a network namespace of its own."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Protocol

LONGEST_PATH = 103  # bytes; an address has room for 108 on Linux and 104 on macOS, with the NUL at its end
LOOPBACK = ("127.0.0.1", "::1")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Upstream(Protocol):
    async def connect(self) -> Streams:
        """Opens a connection to the served process. Raises OSError."""
        ...


class Port:
    """A TCP port. `hosts` are tried in their order until one accepts a connection; from then on only that one is used."""

    def __init__(self, hosts: tuple[str, ...], port: int) -> None:
        self.hosts, self.port = hosts, port

    async def connect(self) -> Streams:
        failure = OSError("no host")
        for host in self.hosts:  # some servers listen on IPv6 only when they are given "localhost"
            try:
                streams = await self._open(host)
            except OSError as error:
                failure = error
            else:
                self.hosts = (host,)
                return streams
        raise failure

    async def _open(self, host: str) -> Streams:
        return await asyncio.open_connection(host, self.port)


class UnixSocket:
    def __init__(self, path: str) -> None:
        self.path = path

    async def connect(self) -> Streams:
        return await asyncio.open_unix_connection(self.path)


class IsolatedPort(Port):
    """A port in another network namespace. A process in that namespace sends sockets through `sockets` (isolated.py). A socket
    belongs to the namespace in which it was created, so a connection is opened here."""

    def __init__(self, sockets: socket.socket, port: int) -> None:
        super().__init__(LOOPBACK, port)
        self._sockets = sockets
        self._sockets.setblocking(False)
        self._receiving = asyncio.Lock()

    async def _open(self, host: str) -> Streams:
        one = await self._receive()
        try:
            one.setblocking(False)
            if one.family == socket.AF_INET6 and "." in host:
                host = f"::ffff:{host}"  # reaches the IPv4 address from a socket of IPv6
            await asyncio.get_running_loop().sock_connect(one, (host, self.port))
            return await asyncio.open_connection(sock=one)
        except BaseException:
            one.close()
            raise

    async def _receive(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        async with self._receiving:  # only one reader can wait for a descriptor
            while True:
                try:
                    _, found, _, _ = socket.recv_fds(self._sockets, 1, 1)
                except BlockingIOError:
                    readable = loop.create_future()
                    loop.add_reader(self._sockets, _done, readable)
                    try:
                        await readable
                    finally:
                        loop.remove_reader(self._sockets)
                    continue
                if not found:
                    raise ConnectionError("the process that opens sockets in the namespace has ended")
                return socket.socket(fileno=found[0])


def _done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def socket_path(folder: Path) -> str:
    """Returns a free path for a unix socket in this folder that fits into an address. Raises OSError.

    In a long folder the path leads through a descriptor of this process, which stays open until the process ends. Only processes
    of the same user can use such a path.
    """
    (folder / "serve.sock").unlink(missing_ok=True)  # no server can listen on a file that exists
    path = str(folder / "serve.sock")
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    if not os.path.isdir("/proc/self/fd"):
        raise OSError(f"{path} is longer than {LONGEST_PATH} bytes, so no socket can have it: use a shorter data directory")
    return f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}/serve.sock"
