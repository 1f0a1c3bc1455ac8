"""`make demo-kube`: in tests/, `PYTHONPATH=kubernetes:../testcluster python -m kube_demo`."""

import argparse
import sys

from holdfast.demo.printer import Printer
from holdfast.demo.run import run
from holdfast_testcluster import binaries

from .stage import ClusterStage
from .steps import ClusterDemo


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kube_demo", description="A demo of Holdfast on Kubernetes.")
    parser.add_argument("--calm", type=float, default=8.0, metavar="SECONDS", help="how long work flows before the first fault")
    options = parser.parse_args()
    if lacking := binaries.missing():
        sys.exit(lacking)
    printer, stage = Printer(sys.stdout), ClusterStage()
    return run(stage, printer, lambda: ClusterDemo(stage, printer, options.calm))


if __name__ == "__main__":
    sys.exit(main())
