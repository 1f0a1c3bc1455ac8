"""Faults that wait for a moment: which moments there are, what such a fault hits, and that a deliberate bug is caught by it."""

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants import MUTANTS
from past_bugs import PAST

from holdfast.sim.faults import draw, seed_of
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.many import run_one, server
from holdfast.sim.moments import MOMENTS, Moments, Target
from holdfast.sim.named import NAMED

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def simulated_dsn() -> Iterator[str]:
    with server() as postgres:
        yield postgres.dsn


def test_a_seed_may_name_the_moment_of_each_fault() -> None:
    plan = draw("3@pod.kill@claim.active+store.outage", 30, 240)
    assert {(fault.kind, fault.moment) for fault in plan} == {("pod.kill", "claim.active"), ("store.outage", "")}
    assert "pod.kill@claim.active" in str(next(fault for fault in plan if fault.moment))
    long = draw("3@pod.hang@claim.active..claim.ended", 30, 240)
    assert {(fault.kind, fault.moment, fault.until) for fault in long} == {("pod.hang", "claim.active", "claim.ended")}
    assert "pod.hang@claim.active..claim.ended (" in str(long[0])
    assert {fault.amount for fault in draw("3@cluster.quota=0.5@worker.parked", 30, 240)} == {0.5}
    assert draw("3@none", 30, 240) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "7@pod.kill@",
        "7@pod.kill@claim.lost",
        "7@claim.active",
        "7@none+pod.kill",
        "7@none@claim.ended",
        "7@pod.kill=2",
        "7@pod.hang@claim.active..x",
    ],
)
def test_a_moment_that_does_not_exist_is_refused_because_its_fault_would_wait_forever(wrong: str) -> None:
    with pytest.raises(ValueError, match="no such"):
        seed_of(wrong)


def test_one_fault_of_each_kind_begins_at_its_moment_and_no_other_does() -> None:
    began: list[tuple[str, Target]] = []
    moments = Moments()
    for name, kind, moment in [
        ("first kill", "pod.kill", "claim.active"),
        ("second kill", "pod.kill", "claim.active"),
        ("outage", "store.outage", "claim.active"),
        ("too late", "pod.kill", "claim.ended"),
    ]:
        moments.wait(moment, kind, lambda target, name=name: began.append((name, target)))  # type: ignore[misc]

    async def story() -> None:
        moments.happened("claim.active", Target("r1", "w-1", "c-1"))
        assert began == [], "the change itself comes first"
        await asyncio.sleep(0.001)
        moments.happened("claim.active", Target("r2", "w-2", "c-2"))
        moments.happened("claim.active", Target("r3", "w-3", "c-3"))
        await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(random.Random(1))) as runner:
        runner.run(story())
    first, second = Target("r1", "w-1", "c-1"), Target("r2", "w-2", "c-2")
    assert began == [("first kill", first), ("outage", first), ("second kill", second)]


def test_a_fault_hits_the_worker_that_its_moment_is_about(simulated_dsn: str) -> None:
    result = run_one("1@pod.kill@claim.active", simulated_dsn)
    assert result.failure is None, result.failure
    trace = [line for line in result.lines if re.search(r"^ *[\d.]+  (fault|event|cluster) ", line)]
    faults = [number for number, line in enumerate(trace) if "  fault " in line]
    assert len(faults) >= 3
    for number in faults:
        at, worker = trace[number].split()[0], next(word for word in trace[number].split() if word.startswith("w-"))
        assert any(line.split()[0] == at and "claim.active" in line and worker in line for line in trace[number - 5 : number])
        assert f"kill           {worker}" in trace[number + 1]


def test_every_deliberate_bug_names_faults_and_moments_that_exist() -> None:
    for mutant in MUTANTS + PAST:
        assert seed_of(f"1@{mutant.faults}")
        assert mutant.faults == "none" or all("@" in part for part in mutant.faults.split("+")), mutant.name


def test_the_docs_show_the_faults_and_moments_of_every_bug() -> None:
    docs = (ROOT / "docs" / "simulation.md").read_text()
    for mutant in MUTANTS:
        assert f"| {mutant.name} | `{mutant.faults}` | " in docs
    for faults in NAMED.values():
        assert f" | `{faults}` | " in docs


def test_the_docs_list_every_moment() -> None:
    docs = (ROOT / "docs" / "simulation.md").read_text()
    assert [moment for moment in MOMENTS if f"`{moment}`" not in docs] == []


@pytest.mark.whole  # simulates a fleet in a process of its own
def test_a_deliberate_bug_is_caught_by_the_fault_at_its_moment() -> None:
    argv = [sys.executable, "scripts/sim_mutants.py", "--only", "an unmatched UPDATE", "--seeds", "3", "--jobs", "1"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^caught  an unmatched UPDATE.*\n +seed \d@operator\.force-release@claim\.active: P8", done.stdout)
    assert "1 of 1 caught" in done.stdout
