"""`python -m bench [claims] [duties] [growth]`: one JSON line a figure. Ends with 1 if a target was missed."""

import asyncio
import contextlib
import os
import signal
import sys

from .claims import claims
from .duties import duties
from .figure import Figure
from .growth import growth
from .stage import stage

PARTS = {"claims": claims, "duties": duties, "growth": growth}


async def main(names: list[str]) -> int:
    missed = 0
    for name in names:
        # A stage each: what one part leaves behind must not weigh on the next.
        with stage() as here:
            await here.prepare()
            # Only claims come through a replica; elsewhere its own duties would meddle with what is measured.
            with here.replica() if name == "claims" else contextlib.nullcontext():
                async for figure in PARTS[name](here):
                    print(figure.line(), flush=True)
                    missed += figure.ok is False
    # Read beside the figures: what else ran at the time makes the absolute ones worthless, the ratios less so.
    busy = Figure("load average over the last 5 min", os.getloadavg()[1], "runnable", "cores", float(os.cpu_count() or 1))
    print(busy.line())
    return min(missed, 1)


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(PARTS)
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        sys.exit(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Postgres and the replica end with us
    sys.exit(asyncio.run(main(chosen)))
