"""Whole simulations: the same seed gives the same bytes, and a deliberate bug is found and its plan is made shorter."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants import MUTANTS
from past_bugs import PAST

from holdfast.sim.book import Book, Broken
from holdfast.sim.causes import CAUSES
from holdfast.sim.faults import KINDS, Fault, draw, seed_of
from holdfast.sim.many import run_one, server
from holdfast.sim.named import NAMED
from holdfast.sim.report import describe
from holdfast.sim.run import RunResult
from holdfast.sim.shrink import shrink

SRC = Path(__file__).resolve().parents[2] / "src" / "holdfast"


@pytest.fixture(scope="module")
def simulated_dsn() -> Iterator[str]:
    with server() as postgres:
        yield postgres.dsn


def test_one_seed_gives_one_trace_whatever_the_hash_seed(simulated_dsn: str) -> None:
    code = "import sys; from holdfast.sim.many import run_one; o = run_one('4', sys.argv[1]); print(o.digest, o.failure)"
    printed = []
    for hash_seed in ("1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code, simulated_dsn], env=env, capture_output=True, text=True, timeout=500, check=True
        )
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert printed[0].endswith("None\n")


def test_a_run_keeps_its_promises_and_really_did_something(simulated_dsn: str) -> None:
    result = run_one("7", simulated_dsn)
    assert result.failure is None, describe(result)
    assert result.statements > 2000
    trace = "\n".join(result.lines)
    for word in ("claim.active", "worker.parked", "claim.ended", "protect", "clear", "fault", "heal"):
        assert word in trace, word


def test_other_seeds_give_other_runs() -> None:
    plans = [draw(str(seed), 30, 240) for seed in range(200)]
    assert len({str(plan) for plan in plans}) == 200
    assert {fault.kind for plan in plans for fault in plan} == set(KINDS), "every fault comes up"
    assert plans[3] == draw("3", 30, 240)


def test_every_kind_of_fault_has_its_cause() -> None:
    assert CAUSES.keys() == KINDS.keys()


def test_a_seed_may_name_the_only_faults_that_it_draws() -> None:
    plans = [draw(f"{seed}@store.failover+pod.kill", 30, 240) for seed in range(20)]
    assert {fault.kind for plan in plans for fault in plan} == {"store.failover", "pod.kill"}
    assert len({str(plan) for plan in plans}) == 20
    for wrong in ("", "x", "7@", "7@store.flood", "@pod.kill", "-1"):
        with pytest.raises(ValueError, match=r"not a seed|no such fault"):
            seed_of(wrong)


def test_shrinking_keeps_what_matters() -> None:
    faults = [Fault(float(n), "pod.kill", 0.0, 0.1, 0.1) for n in range(12)]
    ran = 0

    def run(some: list[Fault]) -> RunResult:
        nonlocal ran
        ran += 1
        needed = {3.0, 8.0} <= {fault.at for fault in some}
        return _result(some, "P1" if needed else None)

    best = shrink(_result(faults, "P1"), run)
    assert [fault.at for fault in best.faults] == [3.0, 8.0]
    assert ran <= 40


def test_a_failure_that_is_another_one_is_not_taken_for_the_same() -> None:
    faults = [Fault(float(n), "pod.kill", 0.0, 0.1, 0.1) for n in range(4)]
    assert shrink(_result(faults, "P1"), lambda some: _result(some, "P5")).faults == faults


def test_the_report_shows_what_a_person_needs() -> None:
    result = _result([Fault(31.5, "pod.kill", 0.0, 0.1, 0.1)], "P2")
    printed = describe(result)
    for word in ("seed 9", "P2", "something", "31.500  pod.kill", "an event", "make sim SEED=9"):
        assert word in printed
    assert "a statement" not in printed


@pytest.mark.parametrize("mutant", MUTANTS + PAST, ids=[mutant.name for mutant in MUTANTS + PAST])
def test_every_deliberate_bug_still_fits_the_code(mutant: object) -> None:
    for change in mutant.changes:  # type: ignore[attr-defined]
        assert (SRC / change.path).read_text().count(change.before) == 1, change


def test_every_past_bug_can_be_put_back() -> None:
    assert {mutant.name for mutant in PAST} == NAMED.keys()


def test_the_book_knows_a_command_that_starts_twice() -> None:
    from types import SimpleNamespace

    book, one, two = Book(), SimpleNamespace(uid="1", name="w-1"), SimpleNamespace(uid="2", name="w-2")
    book.started(one, "c-1", 5, 0.0, again=False)  # type: ignore[arg-type]
    with pytest.raises(Broken, match="still runs elsewhere"):
        book.started(two, "c-1", 6, 1.0, again=True)  # type: ignore[arg-type]
    book.stopped(one)  # type: ignore[arg-type]
    with pytest.raises(Broken, match="twice without retry"):
        book.started(two, "c-1", 6, 1.0, again=False)  # type: ignore[arg-type]
    book.started(two, "c-1", 6, 1.0, again=True)  # type: ignore[arg-type]
    book.delivered(one, "ann", "c-1")  # type: ignore[arg-type]
    with pytest.raises(Broken, match="received a claim of ann"):
        book.delivered(one, "bob", "c-2")  # type: ignore[arg-type]


def _result(faults: list[Fault], promise: str | None) -> RunResult:
    from holdfast.sim.run import BrokenPromise

    failure = BrokenPromise(promise, "something", 40.0) if promise else None
    return RunResult(
        "9",
        failure,
        faults,
        ["    1.000  sql          r1             a statement", "    2.000  event        an event"],
        "d",
        1,
        2.0,
    )
