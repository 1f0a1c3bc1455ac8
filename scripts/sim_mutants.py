"""Applies each deliberate bug to a copy of the product, and checks that the simulation finds it: `make sim-mutants`."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "tests" / "sim"))

from mutants import MUTANTS, PAST, Mutant  # noqa: E402

from holdfast.sim.named import NAMED  # noqa: E402


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


def caught(mutant: Mutant, *which: str) -> str | None:
    """Returns the simulation's report of the bug, or None if it found nothing with these seeds."""
    with tempfile.TemporaryDirectory(prefix="hf-mutant-") as folder:
        Path(folder).chmod(0o755)
        mutated(mutant, Path(folder))
        env = {**os.environ, "PYTHONPATH": f"{folder}/src", "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [sys.executable, "-m", "holdfast.sim", "--until-broken", *which]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        said = re.search(r"^seed \d\S*: .*$", done.stdout, re.MULTILINE)
        if said is None:
            raise SystemExit(f"{mutant.name}: the simulation itself failed:\n{done.stdout}\n{done.stderr}")
        return said[0]


def main() -> int:
    """Runs all mutants. A past bug is tried with its named seed first, and then with other seeds of the same faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="mutants whose name contains this")
    parser.add_argument("--past", action="store_true", help="only past bugs that the simulation found")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    chosen = [mutant for mutant in ((), MUTANTS)[not args.past] + PAST if args.only is None or args.only in mutant.name]
    many = ("--seeds", str(args.seeds), "--first", str(args.first), "--jobs", str(args.jobs))
    missed = []
    for mutant in chosen:
        began = time.monotonic()
        if seed := NAMED.get(mutant.name):
            said = caught(mutant, "--seed", seed, "--jobs", "1")
            if said is None and (said := caught(mutant, *many, "--faults", seed.partition("@")[2])):
                said += f"\n        ({seed} does not find it any more: name this seed instead)"
        else:
            said = caught(mutant, *many, "--faults", mutant.faults)
        took = time.monotonic() - began
        print(
            f"{'caught' if said else 'MISSED':<7} {mutant.name}  ({took:.0f} s)\n        {said or 'nothing broken'}", flush=True
        )
        if said is None:
            missed.append(mutant.name)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
