"""A tenant that sends requests to every route that it may use, as fast as it gets answers, in a process of its own."""

import asyncio
import contextlib
import itertools
import time
from typing import Any

import msgspec

from . import aside
from .line import Line

BIG = {"payload": "x" * 30_000, "env": {f"V{n}": "x" * 100 for n in range(100)}}


class Flood(msgspec.Struct, kw_only=True):
    port: int
    token: str
    pool: str
    connections: int
    seconds: float


class Flooded(msgspec.Struct, kw_only=True):
    answers: dict[int, int]  # by status


def routes(pool: str) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Returns requests to all routes of a tenant that answer soon. Most claims are refused, because its queue is full."""
    claim = {"pool": pool, "wait": "0s"}
    return [
        ("POST", "/v1/claims", claim),
        ("POST", "/v1/claims", claim | BIG),
        ("POST", "/v1/claims", claim | {"wait": "1s"}),
        ("POST", "/v1/claims", {"pool": "no-such-pool"}),
        ("POST", "/v1/claims", {"wrong": [[]] * 1000}),
        ("GET", "/v1/claims?limit=1000", None),
        ("GET", "/v1/claims?state=ended&limit=1000", None),
        ("GET", "/v1/claims/c-unknown", None),
        ("GET", "/v1/events?newest=true&limit=1000", None),
        ("GET", "/v1/explain/claim/c-unknown", None),
        ("GET", "/v1/claims/c-unknown/output", None),
        ("POST", "/v1/claims/c-unknown/renew", {"fence": 1}),
        ("POST", "/v1/claims/c-unknown/release", {"fence": 1}),
        ("POST", "/v1/claims/c-unknown/cancel", {}),
        ("GET", "/v1/pools", None),
        ("GET", "/v1/me", None),
        ("GET", "/openapi.json", None),
    ]


async def flood(work: Flood) -> Flooded:
    answers: dict[int, int] = {}
    end = time.perf_counter() + work.seconds

    async def one(number: int) -> None:
        line = Line(work.port)
        requests = itertools.cycle(routes(work.pool))
        for _ in range(number):  # each connection begins with another route
            next(requests)
        while time.perf_counter() < end:
            method, path, body = next(requests)
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(20):
                    status, _ = await line.call(path, work.token, body, method)
                    answers[status] = answers.get(status, 0) + 1
        line.close()

    await asyncio.gather(*(one(number) for number in range(work.connections)))
    return Flooded(answers=answers)


if __name__ == "__main__":
    aside.main(Flood, flood)
