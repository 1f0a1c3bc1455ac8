"""Benchmarks: each figure beside its limit, both measured in the same run. `make bench` prints one JSON line per figure."""

from pathlib import Path

ROOT = Path(__file__).parent.parent  # processes of a benchmark start here, so that `python -m bench.…` finds this package
