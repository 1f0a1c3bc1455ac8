"""The Python client: hold a worker with `claim`, or call any endpoint with `Client`.

    async with holdfast.claim("duckdb", tenant="acme") as worker:
        async with session.get(worker.endpoint, headers=worker.headers) as answer: ...

`holdfast.client.sync` is the same for code without an event loop.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers import Claim, Event, Page, Pool
    from .client import Client
    from .errors import (
        ClaimEnded,
        Conflict,
        Denied,
        HoldfastError,
        Invalid,
        LeaseLost,
        NotConfigured,
        NotFound,
        Refused,
        Unavailable,
        Unreachable,
    )
    from .holding import HeldWorker, claim
    from .output import OutputPiece
    from .requests import ClaimOptions, ClaimRequest
    from .sync import SyncClient

# Names are imported on first use, because `import holdfast` must not load an HTTP library.
_HOME = {
    "Claim": "answers",
    "Event": "answers",
    "Page": "answers",
    "Pool": "answers",
    "Client": "client",
    "ClaimEnded": "errors",
    "Conflict": "errors",
    "Denied": "errors",
    "HoldfastError": "errors",
    "Invalid": "errors",
    "LeaseLost": "errors",
    "NotConfigured": "errors",
    "NotFound": "errors",
    "Refused": "errors",
    "Unavailable": "errors",
    "Unreachable": "errors",
    "HeldWorker": "holding",
    "claim": "holding",
    "OutputPiece": "output",
    "ClaimOptions": "requests",
    "ClaimRequest": "requests",
    "SyncClient": "sync",
}

__all__ = [
    "Claim",
    "ClaimEnded",
    "ClaimOptions",
    "ClaimRequest",
    "Client",
    "Conflict",
    "Denied",
    "Event",
    "HeldWorker",
    "HoldfastError",
    "Invalid",
    "LeaseLost",
    "NotConfigured",
    "NotFound",
    "OutputPiece",
    "Page",
    "Pool",
    "Refused",
    "SyncClient",
    "Unavailable",
    "Unreachable",
    "claim",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
