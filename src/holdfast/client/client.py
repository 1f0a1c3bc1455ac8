"""One client for all endpoints, with fail-over between replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from .claims import ClaimEndpoints
from .fleet import FleetEndpoints
from .transport import Transport


class Client(ClaimEndpoints, FleetEndpoints):
    """`async with Client("http://127.0.0.1:7070", token) as client: …`

    `urls` may name several replicas, because any replica serves any request. `patience` is the number of seconds for
    which a request to an unreachable or unavailable server is repeated before it fails.
    """

    def __init__(self, urls: str | Sequence[str], token: str, *, patience: float = 30.0) -> None:
        self.transport = Transport(urls, token, patience=patience)

    @classmethod
    def over(cls, transport: Transport) -> Self:
        """Returns a client that uses the caller's transport."""
        client = cls.__new__(cls)
        client.transport = transport
        return client

    def seconds_until(self, moment: datetime) -> float:
        """Returns the seconds until a moment of the *server's* clock."""
        return moment.timestamp() - (time.time() + self.transport.skew)

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
