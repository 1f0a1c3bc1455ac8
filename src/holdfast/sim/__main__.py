"""`make sim`: simulate fleets from seeds, and print the promises that break."""

import argparse
import os
import secrets
import signal
import sys
import time
from pathlib import Path

from .faults import seed_of
from .many import run_many, run_one, server, shrunk
from .named import NAMED, SEEDS
from .report import describe
from .run import RunResult

FIXED = range(1, 17)  # run by default, besides the seeds of past bugs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.sim", description=__doc__)
    parser.add_argument("--seed", help="replay this seed, and keep its trace")
    parser.add_argument("--seeds", type=int, help="run seeds 1…N")
    parser.add_argument("--faults", default="", help="only these faults, e.g. pod.kill or pod.kill@claim.active")
    parser.add_argument("--first", type=int, default=1, help="with --seeds: the first seed")
    parser.add_argument("--fresh", type=int, default=0, help="add this many random seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at the same time")
    parser.add_argument("--trace", type=Path, default=Path("sim-trace.log"), help="where the trace of --seed is written")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first broken promise")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for a shorter plan of faults")
    args = parser.parse_args()
    only = f"@{args.faults}" if args.faults else ""
    try:
        seed_of(args.seed if args.seed is not None else f"0{only}")
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Postgres is stopped too
    with server() as postgres:
        if args.seed is not None and not args.until_broken:
            return replay(args.seed, postgres.dsn, args.trace, look_further=not args.no_shrink)
        if args.seed is not None:
            seeds = [args.seed]
        elif args.seeds:
            seeds = [f"{number}{only}" for number in range(args.first, args.first + args.seeds)]
        else:
            named = [f"{number}@{faults}" for faults in NAMED.values() for number in SEEDS]
            seeds = [*named, *(f"{number}{only}" for number in FIXED)]
        seeds += [f"{1_000_000 + secrets.randbelow(1_000_000_000)}{only}" for _ in range(args.fresh)]
        if args.until_broken:
            return first_broken(seeds, postgres.dsn, args.jobs)
        return several(list(dict.fromkeys(seeds)), postgres.dsn, args.jobs, look_further=not args.no_shrink)


def replay(seed: str, dsn: str, trace: Path, *, look_further: bool) -> int:
    print(f"seed {seed}: running", flush=True)
    result = run_one(seed, dsn)
    trace.write_text("\n".join(result.lines) + "\n")
    print(f"{result.statements} statements, {result.seconds:.0f} simulated seconds, trace {result.digest} in {trace}")
    return print_result(result, dsn, look_further=look_further)


def several(seeds: list[str], dsn: str, jobs: int, *, look_further: bool) -> int:
    print(f"{len(seeds)} seeds, {jobs} at the same time", flush=True)
    began, simulated, statements, failed = time.monotonic(), 0.0, 0, []
    for done, result in enumerate(run_many(seeds, dsn, jobs), 1):
        simulated += result.seconds
        statements += result.statements
        if result.failure is not None:
            failed.append(result)
            print(f"seed {result.seed}: {result.failure.promise}: {result.failure.what}", flush=True)
        if done % 10 == 0 or done == len(seeds):
            passed = time.monotonic() - began
            print(
                f"{done} of {len(seeds)} seeds, {passed:.0f} s, {simulated / 3600:.1f} simulated hours, {len(failed)} broken",
                flush=True,
            )
    for result in failed[:3]:
        print_result(result, dsn, look_further=look_further)
    return 1 if failed else 0


def first_broken(seeds: list[str], dsn: str, jobs: int) -> int:
    """Print one line with the first seed that breaks a promise, and the promise."""
    # With one process the seeds run in order, and none is started without need.
    for result in run_many(seeds, dsn, jobs) if jobs > 1 else (run_one(seed, dsn) for seed in seeds):
        if result.failure is not None:
            print(f"seed {result.seed}: {result.failure.promise}: {result.failure.what}", flush=True)
            return 1
    print(f"{len(seeds)} seeds, nothing broken")
    return 0


def print_result(result: RunResult, dsn: str, *, look_further: bool) -> int:
    if result.failure is None:
        print(f"seed {result.seed}: all promises kept")
        return 0
    print(describe(result, shrunk(result, dsn) if look_further else None), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
