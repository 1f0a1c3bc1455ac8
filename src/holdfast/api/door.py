"""The open connections of a replica: which ones are known, and which one is closed when there is no room (decision 0024)."""

import asyncio
import ipaddress
from typing import Protocol

import structlog

from ..metrics import Metrics
from . import descriptors

log = structlog.get_logger()

SWEEP_SECONDS = 1.0
LOG_SECONDS = 10.0  # between two log lines about closed connections, so that a flood does not fill the disk
STRANGERS_BYTES = 32 * 1024 * 1024  # of requests that are not authenticated yet, over all connections
SHARE = 8  # one address may have this part of all connections for strangers
FEWEST_PER_ADDRESS = 16


class Connection(Protocol):
    address: str  # empty for a unix socket
    deadline: float  # when the loop's clock shows this, `expire` is called
    held: int  # bytes of the request that are in memory; the door sets it

    def expire(self) -> str | None:
        """Ends what took too long. Returns the reason, if the client is to blame."""

    def abort(self) -> None:
        """Closes the connection at once, without an answer."""


class Door:
    """Counts connections. A connection is a stranger's until a request on it had a valid token."""

    def __init__(self, metrics: Metrics, most: int = descriptors.MOST_CONNECTIONS) -> None:
        self.most = most
        self._metrics = metrics
        self._strangers: dict[Connection, None] = {}  # in the order of their arrival
        self._by_address: dict[str, dict[Connection, None]] = {}  # strangers only
        self._known: set[Connection] = set()
        self._held = 0  # bytes, of all strangers
        self._sweep: asyncio.TimerHandle | None = None
        self._closed_until = 0.0  # no connection is accepted before this time
        self._logged_at = float("-inf")
        self._unlogged = 0

    @property
    def open(self) -> int:
        return len(self._strangers) + len(self._known)

    def enter(self, connection: Connection) -> None:
        """Admits a new connection, and closes the oldest stranger's connection if there is no room."""
        loop = asyncio.get_running_loop()
        neighbours = self._by_address.setdefault(connection.address, {})
        self._strangers[connection] = neighbours[connection] = None
        self._metrics.connections.labels("false").inc()
        if self._sweep is None:
            self._sweep = loop.call_later(SWEEP_SECONDS, self._look)
        if loop.time() < self._closed_until:
            self._drop(connection, "descriptors")
        elif len(neighbours) > max(FEWEST_PER_ADDRESS, self.most // SHARE):
            self._drop(next(iter(neighbours)), "address")
        elif self.open > self.most:
            self._drop(next(iter(self._strangers)), "full")

    def know(self, connection: Connection) -> None:
        """Marks a connection on which a request had a valid token. It is never closed to make room."""
        if connection in self._strangers:
            self._forget(connection)
            self._known.add(connection)
            self._metrics.connections.labels("true").inc()

    def hold(self, connection: Connection, size: int) -> None:
        """Notes how many bytes of a stranger's request are in memory."""
        if connection in self._strangers:
            self._held += size - connection.held
            connection.held = size
            while self._held > STRANGERS_BYTES:
                self._drop(next(each for each in self._strangers if each.held), "memory")

    def leave(self, connection: Connection) -> None:
        if connection in self._known:
            self._known.discard(connection)
            self._metrics.connections.labels("true").dec()
        else:
            self._forget(connection)

    def count(self, reason: str) -> None:
        """Counts a connection that was closed because of what its client did."""
        self._metrics.connections_dropped.labels(reason).inc()
        self._unlogged += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= LOG_SECONDS:
            log.warning("closed connections", reason=reason, closed=self._unlogged, open=self.open, most=self.most)
            self._logged_at, self._unlogged = now, 0

    def _drop(self, connection: Connection, reason: str) -> None:
        self._forget(connection)  # now, because the transport reports its end only in the loop's next turn
        connection.abort()
        self.count(reason)

    def _forget(self, stranger: Connection) -> None:
        if stranger not in self._strangers:
            return
        del self._strangers[stranger]
        neighbours = self._by_address[stranger.address]
        del neighbours[stranger]
        if not neighbours:
            del self._by_address[stranger.address]
        self._held -= stranger.held
        stranger.held = 0
        self._metrics.connections.labels("false").dec()

    def _look(self) -> None:
        """Ends what took too long. Runs once per second while connections are open."""
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(SWEEP_SECONDS, self._look) if self.open else None
        now = loop.time()
        late = [each for each in (*self._strangers, *self._known) if each.deadline <= now]
        for connection in late:
            if (reason := connection.expire()) is not None:
                self.count(reason)
        if descriptors.used_up():
            self._make_room(now)

    def _make_room(self, now: float) -> None:
        """Closes strangers' connections, so that duties can open files again (P6), and accepts none until the next look."""
        self._closed_until = now + SWEEP_SECONDS
        oldest = list(self._strangers)[: descriptors.RESERVED]
        for connection in oldest:
            self._drop(connection, "descriptors")
        if not oldest:
            self.count("descriptors")


def address_of(peer: object) -> str:
    """Returns the address by which strangers are counted. An IPv6 client can have any address of its /64, so they count as one."""
    if not isinstance(peer, tuple) or not peer:
        return ""  # a unix socket
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return str(peer[0])
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))
    return str(address)
