"""Claims of one tenant while another tenant floods every route, beside the same claims without the flood."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from . import aside, load
from .claims import Round, middle, staged
from .figure import Figure
from .flood import Flood, Flooded
from .part import Part
from .sizes import Sizes
from .stage import Stage

QUIET = "the same claims without the flood"
MEDIAN = "fairness: claims p50 beside a flood of another tenant"
TAIL = "fairness: claims p99 beside a flood of another tenant"
LIMITS = {"maxClaims": 2, "maxWaiting": 100}  # of the tenant that floods; the operator would set them for such a tenant


def names(sizes: Sizes) -> list[str]:
    return [MEDIAN, TAIL]


async def fairness(here: Stage, sizes: Sizes) -> AsyncIterator[Figure]:
    tokens = {tenant: _token(here, tenant) for tenant in ("victim", "flooder")}
    status, answer = here.api("PUT", "/v1/tenants/flooder", LIMITS)
    assert status == 200, answer
    pool = here.make_pool("session", 6, 20)

    def claims() -> load.Done:
        work = load.Work(what="own", port=here.port, token=tokens["victim"], pool=pool, clients=1, seconds=sizes.flood_seconds)
        return load.run(work)

    def flood() -> Flooded:
        # It begins before the claims and ends after them.
        seconds = sizes.flood_seconds + 2
        work = Flood(port=here.port, token=tokens["flooder"], pool=pool, connections=sizes.flooders, seconds=seconds)
        return aside.run("bench.flood", work, Flooded, seconds + load.MORE_SECONDS)

    claims()  # warm up: plans, caches, the replica's connections
    rounds = []
    with ThreadPoolExecutor(1) as other:
        for _ in range(sizes.rounds):
            quiet = load.claims_of(claims())
            flooding = other.submit(flood)
            await asyncio.sleep(1)  # until the flood has begun
            rounds.append(Round(load.claims_of(claims()), quiet))
            answers = flooding.result().answers
            assert answers.get(200, 0) > 0, f"the flood was not served at all: {answers}"
    for name, share, target in ((MEDIAN, 0.5, 2.0), (TAIL, 0.99, None)):
        value, base = middle(rounds, lambda spread, share=share: spread.percentile(share) * 1000)  # type: ignore[misc]
        yield Figure(name, value, "ms", QUIET, base, target)


def _token(here: Stage, tenant: str) -> str:
    status, answer = here.api("POST", "/v1/tokens", {"name": tenant, "role": "tenant", "tenant": tenant})
    assert status == 201, answer
    return str(answer["token"])


FAIRNESS = Part("fairness", staged, fairness, names)
