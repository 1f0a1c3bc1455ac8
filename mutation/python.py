"""Puts small bugs into the Python code, one at a time, and checks whether a test fails: `make mutate-python`."""

import argparse
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .allowed import allowed
from .python_copy import ROOT, make_copy
from .python_mutants import Mutant, mutants
from .python_server import serving
from .python_targets import files, target_of, tests_of

SURVIVORS = Path(__file__).with_name("python_survivors.toml")
LAST = ROOT / ".mutation" / "python-survived.json"  # what survived the last run, for `--again`
PATIENCE = 20.0  # seconds in addition to three times the normal duration of the tests; after that the mutant is judged as hanging
BROKEN = "raise RuntimeError('every test that loads this file fails')\n"


class Judge:
    """One copy of the product and the process that judges mutants in it."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        python = make_copy(folder)
        self._server = stack.enter_context(serving())
        command, variables = [python, "-m", "mutation.python_judge"], os.environ | self._server.variables
        self._process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, path: str, code: str, tests: list[str], seconds: float, scope: str = "") -> dict[str, Any]:
        """Judges one version of a file. `scope` names the function that differs; if empty, the whole file is loaded again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {"path": path, "code": code, "tests": tests, "seconds": seconds, "scope": scope}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the process that judges mutants has died")
        self._server.sweep()
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies are removed
    options = _options()
    explained = explanations()
    chosen = choose(options)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.path}:{mutant.line}  {mutant.key}")
        return 0
    survived: list[Mutant] = []
    counts: dict[str, Counter[str]] = {mutant.path: Counter() for mutant in chosen}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-mutants-"))
        Path(folder).chmod(0o755)  # as root, Postgres runs as another account
        judges = [Judge(Path(folder) / f"copy-{number}", stack) for number in range(options.jobs)]
        limits = baselines(judges[0], {mutant.path: mutant.function for mutant in chosen})
        for mutant, answer in run(judges, chosen, limits):
            outcome = "killed" if answer["outcome"] != "survived" else "explained" if known(mutant, explained) else "survived"
            counts[mutant.path][outcome] += 1
            if outcome == "survived":
                survived.append(mutant)
                print(f"survived: {mutant.path}:{mutant.line}\n    {mutant.key}", flush=True)
            elif options.verbose:
                print(f"{answer['outcome']} {answer['seconds']:.1f}s: {mutant.path}:{mutant.line} {answer['by']}", flush=True)
        for judge in judges:
            judge.close()
    LAST.parent.mkdir(exist_ok=True)
    LAST.write_text(json.dumps([[mutant.path, mutant.key] for mutant in survived]))
    print(table(counts))
    print(f"{len(chosen)} mutants in {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if len(survived) > allowed(options.at_least, len(chosen)) else 0


def choose(options: argparse.Namespace) -> list[Mutant]:
    """Returns the mutants that the options select, in the order of the table of targets."""
    found = [mutant for path in files(ROOT, options.only) for mutant in mutants(path, (ROOT / path).read_text())]
    if options.again:
        again = {tuple(each) for each in json.loads(LAST.read_text())}
        found = [mutant for mutant in found if (mutant.path, mutant.key) in again]
    if options.sample is not None and options.sample < len(found):
        picked = set(random.Random(options.seed).sample(range(len(found)), options.sample))
        found = [mutant for number, mutant in enumerate(found) if number in picked]
    return found


def baselines(judge: Judge, functions: dict[str, str]) -> dict[str, float]:
    """Returns how long each file's tests may take. Fails if the tests fail without a mutant, or pass although the file is broken,
    because then no verdict would mean anything. `functions` names one function per file, to try both ways to judge.
    """
    taken: dict[tuple[str, ...], float] = {}
    limits = {}
    for path, function in functions.items():
        tests = tests_of(ROOT, target_of(path))
        if tuple(tests) not in taken:
            answers = [judge.ask(path, (ROOT / path).read_text(), tests, 900, scope) for scope in {"", function}]
            for answer in answers:
                if answer["outcome"] != "survived":
                    raise SystemExit(f"the tests of {path} do not pass on the unchanged product:\n{answer['printed']}")
            taken[tuple(tests)] = max(answer["seconds"] for answer in answers)
        if judge.ask(path, BROKEN, tests, 900)["outcome"] == "survived":
            raise SystemExit(f"no test of {path} loads it: correct mutation/python_targets.py")
        limits[path] = 3 * taken[tuple(tests)] + PATIENCE
        print(f"{path}: {len(tests)} test files, {taken[tuple(tests)]:.1f} s", flush=True)
    return limits


def run(judges: list[Judge], chosen: list[Mutant], limits: dict[str, float]) -> Iterable[tuple[Mutant, dict[str, Any]]]:
    """Judges mutants in all copies at the same time, and yields each verdict when it is known."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[Mutant, dict[str, Any]] | BaseException] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)

    def work(judge: Judge) -> None:
        try:
            while True:
                mutant = waiting.get_nowait()
                tests = tests_of(ROOT, target_of(mutant.path))
                answers.put((mutant, judge.ask(mutant.path, mutant.code, tests, limits[mutant.path], mutant.function)))
        except queue.Empty:
            return
        except BaseException as error:
            answers.put(error)

    for judge in judges:
        threading.Thread(target=work, args=(judge,), daemon=True).start()
    for _ in chosen:
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        yield answer


def explanations() -> dict[tuple[str, str], str]:
    """Returns why a survivor cannot be noticed, by its file and key."""
    kept = tomllib.loads(SURVIVORS.read_text())
    return {(each["path"], each["change"]): each["why"] for each in kept.get("survivor", [])}


def known(mutant: Mutant, explained: dict[tuple[str, str], str]) -> bool:
    return (mutant.path, mutant.key) in explained


def table(counts: dict[str, Counter[str]]) -> str:
    """Returns one line per file. The percentage is the killed part of all mutants that are not explained."""
    lines = [f"{'file':<44}{'killed':>8}{'survived':>10}{'explained':>11}{'percent':>9}"]
    for path, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        judged = count["killed"] + count["survived"]
        percent = 100 * count["killed"] / judged if judged else 100.0
        lines.append(f"{path:<44}{count['killed']:>8}{count['survived']:>10}{count['explained']:>11}{percent:>8.1f}%")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="files whose path contains this; separate several words with commas")
    parser.add_argument("--sample", type=int, help="number of mutants, drawn with the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants judged at the same time")
    parser.add_argument("--again", action="store_true", help="only what survived the last run")
    parser.add_argument("--at-least", type=float, default=100.0, help="percent that must be killed or explained")
    parser.add_argument("--list", action="store_true", help="print the mutants and judge none")
    parser.add_argument("--verbose", action="store_true", help="print every verdict")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
