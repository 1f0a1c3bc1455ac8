"""`make bench AGAINST=<git rev>`: measures this checkout and another one in turn with the same benchmark, and prints the ratios.

Both sides run this checkout's `bench` on this checkout's virtual environment. Only the package `holdfast` differs, so both sides
have the same load, the same agents and the same libraries.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import ROOT
from .figure import parse

PARTS = ("jobs", "sessions", "leases", "statements")  # the parts that use a replica; the other parts read the rows of the store
ROUNDS = 3
Found = dict[str, tuple[float, str]]  # value and unit of each figure


@contextlib.contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Checks the revision out into a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hf-against-") as folder:
        there = Path(folder) / "holdfast"
        _git("worktree", "add", "--quiet", "--detach", str(there), revision)
        try:
            yield there
        finally:
            _git("worktree", "remove", "--force", str(there))


def _git(*args: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(args)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def measure(source: Path, parts: list[str], options: list[str]) -> Found:
    """Runs the benchmark once with the package `holdfast` of that checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--no-limits", "--rounds", "1", *options, *parts],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode not in (0, 1):  # 1 means that a target was missed, which is not judged here
        raise SystemExit(f"the benchmark of {source} ended with {done.returncode}")
    figures = [parse(line) for line in done.stdout.splitlines()]
    # the last figure is the load of the machine
    return {figure["figure"]: (figure["value"], figure["unit"]) for figure in figures[:-1]}


def compare(rounds: list[tuple[Found, Found]]) -> list[str]:
    """Returns one line per figure: this checkout, the other one, and the median of the ratios of the rounds."""
    titles = {name: f"{name} ({unit})" for name, (_, unit) in rounds[0][0].items()}
    width = max(map(len, titles.values()), default=0)
    lines = [f"{'figure':<{width}} {'here':>10} {'there':>10} {'ratio':>7}"]
    for name, title in titles.items():
        pairs = [(here[name][0], there[name][0]) for here, there in rounds if name in there]
        if not pairs:
            continue
        here, there = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(one / other if other else float("nan") for one, other in pairs)
        lines.append(f"{title:<{width}} {here:>10.4g} {there:>10.4g} {ratio:>7.2f}")
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description="Measures two checkouts in turn.")
    parser.add_argument("revision")
    parser.add_argument("parts", nargs="*", help=f"by default {' '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args(arguments)
    parts, options = chosen.parts or list(PARTS), ["--tiny"] if chosen.tiny else []
    with worktree(chosen.revision) as there:
        rounds = []
        for n in range(chosen.rounds):
            # Each side begins every other round, because a machine that slows down would favour the first.
            sides = [ROOT, there] if n % 2 == 0 else [there, ROOT]
            found = {side: measure(side, parts, options) for side in sides}
            rounds.append((found[ROOT], found[there]))
            print(f"round {n + 1} of {chosen.rounds} is done", file=sys.stderr, flush=True)
        print("\n".join(compare(rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
