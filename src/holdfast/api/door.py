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
TENANT_SHARE = 8  # one tenant may have this part of all connections, so that it takes several tenants to use up theirs
FEWEST_PER_TENANT = 16  # the requests that one tenant may have in progress (`turns.ALONE`)
TENANTS_PART = 3 / 4  # of what agents and operators leave; the rest is for connections that have not sent their token yet


class Connection(Protocol):
    address: str  # empty for a unix socket
    deadline: float  # when the loop's clock shows this, `expire` is called
    held: int  # bytes of the request that are in memory; the door sets it

    @property
    def idle(self) -> bool:
        """Whether no request is in progress, so that the client loses no answer if the connection is closed."""

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
        self._known: dict[Connection, str | None] = {}  # the tenant whose token the last request had
        self._by_tenant: dict[str, dict[Connection, None]] = {}  # in the order of their last requests
        self._tenants = 0  # connections of all tenants
        self._held = 0  # bytes, of all strangers
        self._sweep: asyncio.TimerHandle | None = None
        self._closed_until = 0.0  # no connection is accepted before this time
        self._logged_at = float("-inf")
        self._unlogged = 0

    @property
    def open(self) -> int:
        return len(self._strangers) + len(self._known)

    def enter(self, connection: Connection) -> None:
        """Admits a new connection, and closes another one if there is no room: the oldest one of the other strangers, otherwise
        an idle one of a tenant, because the new one may be an agent's or an operator's."""
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
            oldest = next(iter(self._strangers))
            if oldest is connection and (idle := self._idle_of_largest()) is not None:
                self._drop(idle, "tenant")
            else:
                self._drop(oldest, "full")

    def know(self, connection: Connection, tenant: str | None) -> bool:
        """Marks a connection on which a request had a valid token. An idle connection is closed if tenants have too many. Returns
        False if none is idle; then the request has to be refused and its connection closed."""
        if connection not in self._strangers and connection not in self._known:
            return True  # it was closed during this request
        if tenant is not None and not self._has_room(connection, tenant):
            self.count("tenant")
            return False
        if connection not in self._known or self._known[connection] != tenant:
            self.leave(connection)
            self._known[connection] = tenant
            self._tenants += tenant is not None
            self._metrics.connections.labels("true").inc()
        if tenant is not None:
            own = self._by_tenant.setdefault(tenant, {})
            own.pop(connection, None)
            own[connection] = None  # now the last one
        return True

    def _has_room(self, connection: Connection, tenant: str) -> bool:
        """Returns whether the connection can be this tenant's, after an idle one was closed for it if necessary."""
        own = self._by_tenant.get(tenant, {})
        before = self._known.get(connection)
        others = len(self._known) - self._tenants - (connection in self._known and before is None)
        if len(own) + (before != tenant) > max(FEWEST_PER_TENANT, self.most // TENANT_SHARE):
            idle = next((each for each in own if each.idle), None)
        elif self._tenants + (before is None) > (self.most - others) * TENANTS_PART:
            idle = self._idle_of_largest()
        else:
            return True
        if idle is None:
            return False
        self._drop(idle, "tenant")
        return True

    def _idle_of_largest(self) -> Connection | None:
        """Returns the connection that has been idle for longest, of the tenant with the most connections among those that have
        an idle one."""
        largest_first = sorted(self._by_tenant.values(), key=len, reverse=True)
        return next((each for connections in largest_first for each in connections if each.idle), None)

    def hold(self, connection: Connection, size: int) -> None:
        """Notes how many bytes of a stranger's request are in memory."""
        if connection in self._strangers:
            self._held += size - connection.held
            connection.held = size
            while self._held > STRANGERS_BYTES:
                self._drop(next(each for each in self._strangers if each.held), "memory")

    def leave(self, connection: Connection) -> None:
        if connection in self._known:
            tenant = self._known.pop(connection)
            self._metrics.connections.labels("true").dec()
            if tenant is not None:
                self._tenants -= 1
                del self._by_tenant[tenant][connection]
                if not self._by_tenant[tenant]:
                    del self._by_tenant[tenant]
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
        self.leave(connection)  # now, because the transport reports its end only in the loop's next turn
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
