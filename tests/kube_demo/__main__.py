"""`make demo-kube`: in tests/, `PYTHONPATH=kubernetes:../testcluster python -m kube_demo`."""

import argparse
import sys

from holdfast.demo.run import run
from holdfast.demo.telling import Teller
from holdfast_testcluster import binaries

from .stage import ClusterStage
from .story import ClusterStory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kube_demo", description="A guided minute with Holdfast on Kubernetes.")
    parser.add_argument("--calm", type=float, default=8.0, metavar="SECONDS", help="how long work flows before the first fault")
    options = parser.parse_args()
    if lacking := binaries.missing():
        sys.exit(lacking)
    teller, stage = Teller(sys.stdout), ClusterStage()
    return run(stage, teller, lambda: ClusterStory(stage, teller, options.calm))


if __name__ == "__main__":
    sys.exit(main())
