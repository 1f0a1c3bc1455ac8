"""Entry point of `python -m holdfast.demo` and `make demo`."""

import argparse
import sys

from .printer import Printer
from .run import run
from .stage import LocalStage
from .steps import LocalDemo


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo", description="Shows Holdfast in one minute.")
    parser.add_argument("--calm", type=float, default=10.0, metavar="SECONDS", help="how long work runs before the first fault")
    parser.add_argument("--outage", type=float, default=10.0, metavar="SECONDS", help="how long Postgres is stopped")
    options = parser.parse_args()
    printer, stage = Printer(sys.stdout), LocalStage()
    return run(stage, printer, lambda: LocalDemo(stage, printer, options.calm, options.outage))


if __name__ == "__main__":
    sys.exit(main())
