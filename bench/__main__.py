"""`python -m bench [--write] [PART …]`: prints one JSON line per figure. Ends with 1 if a target was missed."""

import argparse
import dataclasses
import importlib
import os
import signal
import sys

from . import table
from .figure import Figure
from .part import Part
from .sizes import FULL, TINY

# The module of each part. A module is imported when its part runs, because the package of an older checkout may lack what the
# other parts import, and because those on Kubernetes need the control plane of the tests.
PARTS = {
    "jobs": "claims",
    "sessions": "claims",
    "leases": "leases",
    "fairness": "fairness",
    "statements": "statements",
    "duties": "duties",
    "growth": "growth",
}
ON_KUBERNETES = {"kube": "kube", "kube-scale": "kube_scale"}


def find(name: str) -> Part:
    module = importlib.import_module(f"bench.{(PARTS | ON_KUBERNETES)[name]}")
    part: Part = getattr(module, name.replace("-", "_").upper())
    return part


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures figures and their limits.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, *ON_KUBERNETES, []], help="all but the last two if none is named")
    parser.add_argument("--write", action="store_true", help="write the tables in docs/benchmarks.md")
    parser.add_argument(
        "--tiny", action="store_true", help="use the sizes of the tests, to see whether it runs, not how fast it is"
    )
    parser.add_argument("--no-limits", action="store_true", help="measure no limits, because two checkouts are compared")
    parser.add_argument("--rounds", type=int, help="rounds per figure")
    options = parser.parse_args(arguments)
    sizes = TINY if options.tiny else FULL
    sizes = dataclasses.replace(sizes, limits=not options.no_limits, rounds=options.rounds or sizes.rounds)
    missed = 0
    for name in options.parts or PARTS:
        part = find(name)
        found = part.run(sizes, lambda figure: print(figure.line(), flush=True))
        missed += sum(figure.ok is False for figure in found)
        if options.write:
            table.write(name, found)
    # Other work on the machine makes the absolute figures useless, and the ratios less reliable.
    busy = Figure("load average over the last 5 min", os.getloadavg()[1], "runnable", "cores", float(os.cpu_count() or 1))
    print(busy.line())
    return min(missed, 1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Postgres and the replica end with this process
    sys.exit(main(sys.argv[1:]))
