"""Applies each deliberate bug to a copy of the product, and checks that the simulation finds it: `make sim-mutants`."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "tests" / "sim"))

from mutants import MUTANTS, Mutant  # noqa: E402
from past_bugs import PAST  # noqa: E402

SEEDS = 10  # a bug that names its faults and moments must be caught within so many seeds


class Answer(NamedTuple):
    mutant: Mutant
    found: str | None  # which seed broke which promise; None if no seed did
    seconds: float


def mutated(mutant: Mutant, folder: Path) -> None:
    """Makes a copy of the product that contains this bug."""
    shutil.copytree(HERE / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for change in mutant.changes:
        path = folder / "src" / "holdfast" / change.path
        text = path.read_text()
        found = text.count(change.before)
        if found != 1:
            raise SystemExit(f"{mutant.name}: {change.path} contains this {found} times, not once:\n{change.before}")
        path.write_text(text.replace(change.before, change.after))


def tried(mutant: Mutant, first: int, seeds: int) -> Answer:
    """Runs seeds one after the other with the bug's own faults and moments, until one breaks a promise."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hf-mutant-") as folder:
        Path(folder).chmod(0o755)
        mutated(mutant, Path(folder))
        env = {**os.environ, "PYTHONPATH": f"{folder}/src", "PYTHONDONTWRITEBYTECODE": "1"}
        which = ["--seeds", str(seeds), "--first", str(first), "--faults", mutant.faults, "--jobs", "1"]
        argv = [sys.executable, "-m", "holdfast.sim", "--until-broken", *which]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    found = re.search(r"^seed \d\S*: .*$", done.stdout, re.MULTILINE)
    if (done.returncode != 0) != (found is not None):
        raise SystemExit(f"{mutant.name}: the simulation itself failed:\n{done.stdout}\n{done.stderr}")
    return Answer(mutant, found[0] if found is not None else None, time.monotonic() - began)


def all_tried(mutants: Iterable[Mutant], first: int, seeds: int, jobs: int) -> Iterable[Answer]:
    """Yields the answers as they come. Several bugs are tried at the same time, because most need one seed only."""
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(tried, mutant, first, seeds) for mutant in mutants]):
            yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="mutants whose name contains this")
    parser.add_argument("--past", action="store_true", help="only past bugs that the simulation found")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds may be used per bug")
    parser.add_argument("--first", type=int, default=1, help="the first seed; every value must catch every bug")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="bugs at the same time")
    args = parser.parse_args()
    chosen = [mutant for mutant in ((), MUTANTS)[not args.past] + PAST if args.only is None or args.only in mutant.name]
    began, missed = time.monotonic(), 0
    for answer in all_tried(chosen, args.first, args.seeds, args.jobs):
        verdict = "caught" if answer.found else "MISSED"
        found = answer.found or f"{args.seeds} seeds with {answer.mutant.faults}, nothing broken"
        print(f"{verdict:<7} {answer.mutant.name}  ({answer.seconds:.0f} s)\n        {found}", flush=True)
        missed += answer.found is None
    print(f"{len(chosen) - missed} of {len(chosen)} caught in {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
