"""Claims over HTTP until they are active, with hollow agents: rate, median and tail of jobs and of sessions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from . import load
from .figure import Figure
from .part import Part
from .sizes import Sizes
from .spread import Spread
from .stage import Stage, stage

What = Literal["jobs", "sessions"]
SAME = "the same statements without a replica"
# part of the free workers that one round of jobs may use; with an empty pool, the round would measure the replacement instead
SHARE = 0.9


@dataclass(frozen=True)
class Round:
    """One round over HTTP and one of the limit, right after each other."""

    http: Spread
    sql: Spread | None


@contextlib.contextmanager
def staged(sizes: Sizes) -> Iterator[Stage]:
    with stage() as here:
        asyncio.run(here.prepare(limits=sizes.limits))
        with here.replica(sizes.job_seconds):
            yield here


def names(what: What, sizes: Sizes) -> list[str]:
    kinds = ("to active", "p50", "p99", "p99 beside its own p50")
    found = [_name(what, kind, clients) for clients in sizes.clients for kind in kinds]
    return [*found, *([REPLACED] if what == "jobs" else [])]


REPLACED = "jobs: workers replaced"


def _name(what: What, kind: str, clients: int) -> str:
    return f"{what}: claims {kind}, {clients} client{'s' if clients > 1 else ''}"


async def jobs(here: Stage, sizes: Sizes) -> AsyncIterator[Figure]:
    """A job's worker serves one claim, so the replica replaces each worker while the round goes on."""
    pool = here.make_pool("job", sizes.warm, 3 * sizes.warm)
    replaced: list[tuple[float, float]] = []  # workers/s until the pool was full again, and claims/s of the same round

    def once(clients: int) -> load.Done:
        done = load.run(_work("jobs", here, sizes, pool, clients, count=max(1, int(sizes.warm * SHARE))))
        whole = done.seconds + here.until_free(pool, sizes.warm)
        replaced.append((len(done.claims) / whole, len(done.claims) / done.seconds))
        return done

    async for figure in measured(here, sizes, "jobs", once):
        yield figure
    value, base = sorted(replaced, key=lambda pair: pair[0] / pair[1])[len(replaced) // 2]
    yield Figure(REPLACED, value, "workers/s", "claims/s of the same round", base)


async def sessions(here: Stage, sizes: Sizes) -> AsyncIterator[Figure]:
    """Each client takes turns between its tenants. A tenant's worker is reset and parked, and claimed again by its tenant."""
    most = 2 * max(sizes.clients) * sizes.tenants
    pool = here.make_pool("session", max(sizes.clients) * sizes.tenants, 2 * most)

    def once(clients: int) -> load.Done:
        return load.run(_work("sessions", here, sizes, pool, clients, tenants=sizes.tenants))

    async for figure in measured(here, sizes, "sessions", once):
        yield figure


def _work(what: What, here: Stage, sizes: Sizes, pool: str, clients: int, *, count: int = 0, tenants: int = 1) -> load.Work:
    return load.Work(
        what=what,
        port=here.port,
        token=here.token,
        pool=pool,
        clients=clients,
        seconds=sizes.seconds,
        count=count,
        tenants=tenants,
    )


async def limit_of(
    here: Stage, what: Literal["jobs", "sessions", "renew", "release"], clients: int, sizes: Sizes
) -> load.Done | None:
    """Measures the limit, or returns None if `sizes` contains no limits."""
    if not sizes.limits:
        return None
    from . import limit  # the package of an older checkout may lack what only the limits import

    return await limit.measure(here, what, clients, sizes)


async def measured(here: Stage, sizes: Sizes, what: What, once: Callable[[int], load.Done]) -> AsyncIterator[Figure]:
    once(max(sizes.clients))  # warm up: plans, caches, the replica's connections
    for clients in sizes.clients:
        rounds = []
        for _ in range(sizes.rounds):
            done = once(clients)
            bare = await limit_of(here, what, clients, sizes)
            rounds.append(Round(load.claims_of(done), None if bare is None else load.claims_of(bare)))
        for figure in figures_of(what, clients, rounds):
            yield figure


def figures_of(what: What, clients: int, rounds: list[Round]) -> Iterator[Figure]:
    value, base = middle(rounds, lambda spread: spread.rate)
    target = 0.6 if clients > 1 else None  # a single client is judged by its p50
    yield Figure(_name(what, "to active", clients), value, "claims/s", SAME, base, target, least=True)
    value, base = middle(rounds, lambda spread: spread.p50 * 1000)
    yield Figure(_name(what, "p50", clients), value, "ms", SAME, base, 3.0 if clients == 1 else None)
    value, base = middle(rounds, lambda spread: spread.p99 * 1000)
    yield Figure(_name(what, "p99", clients), value, "ms", SAME, base)
    tails = sorted(((each.http.p99, each.http.p50) for each in rounds), key=lambda pair: pair[0] / pair[1])
    p99, p50 = tails[len(tails) // 2]
    yield Figure(_name(what, "p99 beside its own p50", clients), p99 * 1000, "ms", "its own p50", p50 * 1000, 5.0)


def middle(rounds: list[Round], of: Callable[[Spread], float]) -> tuple[float, float | None]:
    """Returns value and limit of the middle round by their ratio, so that both belong to the same moment."""
    pairs = [(of(each.http), None if each.sql is None else of(each.sql)) for each in rounds]
    ordered = sorted(pairs, key=lambda pair: pair[0] / (pair[1] or 1.0))
    return ordered[(len(ordered) - 1) // 2]


JOBS = Part("jobs", staged, jobs, lambda sizes: names("jobs", sizes))
SESSIONS = Part("sessions", staged, sessions, lambda sizes: names("sessions", sizes))
