"""Puts small bugs into the SQL, one at a time, and checks if a test fails: `python -m mutation.run`, or `make mutate-sql`."""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .allowed import allowed
from .lane import lane, original
from .sql import Mutation, apply, mutations
from .targets import pieces
from .trace import Trace

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".mutation"
RESULTS = CACHE / "sql.jsonl"
SURVIVORS = Path(__file__).with_name("survivors.toml")
# How long the tests of one mutant may take together when they are recorded, in seconds. Some functions are reached by hundreds of
# tests. Tests that differ most come first. A bug that only other tests would find counts as survived.
MOST_SECONDS = 60.0
PATIENCE = 20.0  # seconds in addition to four times the normal duration of the tests; after that the mutant is judged as hanging


def main() -> int:
    options = _options()
    CACHE.mkdir(exist_ok=True)
    chosen = choose(options)
    if options.list:
        for one in chosen:
            print(f"{one.id}  {one.file}:{one.line}  {one.shown}")
        return 0
    explained = explanations()
    results = list(judge(chosen, options.lanes, keep=options.again))
    by_id = {one.id: one for one in chosen}
    open_ones = [r for r in results if r["verdict"] == "survived" and by_id[r["id"]].key not in explained]
    print(table(results, {one.id: one.key in explained for one in chosen}))
    for result in open_ones:
        one = by_id[result["id"]]
        print(f"survived: {one.id}\n    {one.file}:{one.line}  {one.shown}")
    return 1 if len(open_ones) > allowed(options.at_least, sum(r["verdict"] != "invalid" for r in results)) else 0


def choose(options: argparse.Namespace) -> list[Mutation]:
    """Returns the mutations that the options select, in the order of the files, or in the order of the draw for a sample."""
    found = [one for piece in pieces(ROOT) for one in mutations(piece, (ROOT / piece.file).read_text())]
    if options.only:
        found = [one for one in found if any(word in one.id for word in options.only.split(","))]
    if options.sample and options.sample < len(found):
        found = random.Random(options.seed).sample(found, options.sample)
    return found


def explanations() -> dict[str, str]:
    """Returns why a survivor cannot be observed, by its key. The file is not part of the key, because functions move."""
    kept = tomllib.loads(SURVIVORS.read_text())
    return {one["id"].partition("/")[2]: one["why"] for one in kept.get("survivor", [])}


def judge(chosen: list[Mutation], lanes: int, keep: bool) -> Iterator[dict[str, Any]]:
    """Yields the verdict on each mutation as it comes. With `keep`, earlier verdicts stay valid unless the mutant survived."""
    history = _results()
    before = {r["id"]: r for r in history} if keep else {}
    old = [before[one.id] for one in chosen if before.get(one.id, {}).get("verdict") in ("killed", "invalid")]
    yield from old
    done = {r["id"] for r in old}
    todo = [one for one in chosen if one.id not in done]
    if not todo:
        return
    with Lanes(min(lanes, len(todo))) as crew:
        reaching = crew.reaching()
        # Tests that caught other mutants of the same function come first.
        kills: Counter[tuple[str, str]] = Counter((r["name"], r["by"]) for r in history if "by" in r)
        queue, busy = todo[::-1], {}
        started, count = time.monotonic(), 0
        while queue or busy:
            while queue and (free := crew.free(busy)):
                one = queue.pop()
                tests = crew.trace.within(
                    MOST_SECONDS, sorted(reaching[one.file, one.name], key=lambda test: -kills[one.name, test])
                )
                limit = PATIENCE + 4 * sum(crew.trace.seconds(test) for test in tests)
                free.send(("judge", (str(one.file), apply(one, (ROOT / one.file).read_text()), tests, limit)))
                busy[free] = one
            for pipe in wait(list(busy)):
                one = busy.pop(pipe)  # type: ignore[index]
                answer = pipe.recv()  # type: ignore[union-attr]
                result = {"id": one.id, "file": str(one.file), "name": one.name, "shown": one.shown} | answer
                if answer["verdict"] == "killed":
                    kills[one.name, answer["by"]] += 1
                with RESULTS.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                count += 1
                if sys.stderr.isatty() or count % 50 == 0:
                    took = time.monotonic() - started
                    print(f"{count} of {len(todo)} in {took:.0f} s", file=sys.stderr, end="\r" if sys.stderr.isatty() else "\n")
                yield result


class Lanes:
    """Processes that judge mutants, each with its own copy of the product and its own Postgres."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._tests: list[str] = []
        self.trace = Trace(ROOT, CACHE / "trace.json")

    def __enter__(self) -> "Lanes":
        context = multiprocessing.get_context("spawn")
        for n in range(self._count):
            copy = CACHE / f"lane-{n}"
            original(ROOT, copy)
            ours, theirs = context.Pipe()
            process = context.Process(target=lane, args=(copy, theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def free(self, busy: dict[Any, Mutation]) -> Connection | None:
        return next((pipe for pipe in self._pipes if pipe not in busy), None)

    def reaching(self) -> dict[tuple[Path, str], list[str]]:
        """Returns the tests that reach each piece. What is not known yet is recorded first."""
        for pipe in self._pipes:
            self._tests = pipe.recv()
        missing = self.trace.missing(self._tests)
        shares = [(pipe, missing[n :: self._count]) for n, pipe in enumerate(self._pipes)]
        for pipe, share in shares:
            if share:
                pipe.send(("trace", share))
        for pipe, share in shares:
            if share:
                self.trace.add(pipe.recv()["tests"])
        failed = self.trace.failed(self._tests)
        if failed:
            print(f"these tests fail without a mutation and judge nothing: {failed}", file=sys.stderr)
        return self.trace.reaching(pieces(ROOT), [test for test in self._tests if test not in failed])


def table(results: list[dict[str, Any]], explained: dict[str, bool]) -> str:
    """Returns killed, survived and explained mutants per file. Mutants that Postgres refuses to run do not count."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        verdict = result["verdict"]
        if verdict == "survived" and explained[result["id"]]:
            verdict = "explained"
        for row in (Path(result["file"]).name, "all"):
            counts.setdefault(row, Counter())[verdict] += 1
    lines = [f"{'file':<14}{'killed':>8}{'survived':>10}{'explained':>11}{'refused':>9}{'percent':>9}"]
    for row, count in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0])):
        valid = count["killed"] + count["survived"] + count["explained"]
        percent = 100 * count["killed"] / valid if valid else 100.0
        lines.append(
            f"{row:<14}{count['killed']:>8}{count['survived']:>10}{count['explained']:>11}{count['invalid']:>9}{percent:>8.1f}%"
        )
    return "\n".join(lines)


def _results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutation.run", description=__doc__)
    parser.add_argument("--only", default="", help="words, separated by commas; selects mutations whose id contains one of them")
    parser.add_argument("--sample", type=int, default=0, help="number of mutations, drawn at random")
    parser.add_argument("--seed", default="1", help="the seed of the draw")
    parser.add_argument("--lanes", type=int, default=min(2, os.cpu_count() or 1), help="processes at the same time")
    parser.add_argument("--again", action="store_true", help="judge only what has no verdict yet, or survived")
    parser.add_argument("--at-least", type=float, default=100.0, help="percent that must be killed or explained")
    parser.add_argument("--list", action="store_true", help="print the mutations and judge none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
