"""Renewals and releases of sessions per second."""

from collections.abc import AsyncIterator
from typing import Literal

from . import load
from .claims import SAME, Round, limit_of, middle, staged
from .figure import Figure
from .part import Part
from .sizes import Sizes
from .spread import Spread
from .stage import Stage

RATES = {"renew": "renewals", "release": "releases"}


def names(sizes: Sizes) -> list[str]:
    return [f"{label}{kind}, {sizes.holders} clients" for label in RATES.values() for kind in ("", " p50", " p99")]


async def leases(here: Stage, sizes: Sizes) -> AsyncIterator[Figure]:
    pool = here.make_pool("session", sizes.leases, 4 * sizes.leases)
    rounds: dict[str, list[Round]] = {what: [] for what in RATES}
    for n in range(sizes.rounds + 1):
        held = load.run(_work(here, sizes, pool, what="hold", count=sizes.leases)).held
        for what in ("renew", "release"):
            done = load.run(_work(here, sizes, pool, what=what, held=held, seconds=sizes.seconds))
            if n == 0:
                continue  # warm up: plans, caches, the replica's connections
            bare = await limit_of(here, what, sizes.holders, sizes)
            rounds[what].append(Round(_spread(what, done), None if bare is None else _spread(what, bare)))
    for what, label in RATES.items():
        rate, base = middle(rounds[what], lambda spread: spread.rate)
        yield Figure(f"{label}, {sizes.holders} clients", rate, "1/s", SAME, base)
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            value, base = middle(rounds[what], lambda spread, share=share: spread.percentile(share) * 1000)  # type: ignore[misc]
            yield Figure(f"{label} {name}, {sizes.holders} clients", value, "ms", SAME, base)


def _spread(what: str, done: load.Done) -> Spread:
    return Spread(done.seconds, done.renewals if what == "renew" else done.releases)


def _work(
    here: Stage,
    sizes: Sizes,
    pool: str,
    *,
    what: Literal["hold", "renew", "release"],
    count: int = 0,
    held: list[load.Held] | None = None,
    seconds: float = 0.0,
) -> load.Work:
    return load.Work(
        what=what,
        port=here.port,
        token=here.token,
        pool=pool,
        clients=sizes.holders,
        seconds=seconds,
        count=count,
        held=held or [],
    )


LEASES = Part("leases", staged, leases, names)
