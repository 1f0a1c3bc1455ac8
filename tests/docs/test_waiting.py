"""The time limits of tests are exact on a quiet machine, and are stretched on a busy one."""

from pathlib import Path

import pytest

import waiting
from waiting import STRETCH, Deadline, eventually


class Machine:
    """A clock and a counter of starved seconds, which the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.starved = 50.0

    def passes(self, seconds: float, starved: float = 0.0) -> None:
        self.now += seconds
        self.starved += starved


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(waiting, "monotonic", lambda: made.now)
    monkeypatch.setattr(waiting, "_starved_seconds", lambda: made.starved)
    return made


def test_on_a_calm_machine_a_bound_is_exact(machine: Machine) -> None:
    deadline = Deadline(10)
    machine.passes(9.9)
    assert not deadline.over()
    machine.passes(0.2)
    assert deadline.over()


def test_starved_seconds_count_as_a_fraction_and_no_bound_is_endless(machine: Machine) -> None:
    deadline = Deadline(10)
    machine.passes(20, starved=19)
    assert deadline.left() == pytest.approx(10 - 1 - 19 / STRETCH)
    machine.passes(STRETCH * 10, starved=STRETCH * 1000)
    assert deadline.over()


def test_a_condition_that_never_holds_fails_with_the_last_answer(machine: Machine) -> None:
    def look() -> list[int]:
        machine.passes(1)
        return []

    with pytest.raises(AssertionError, match=r"the pods did not hold within 3 s; last: \[\]"):
        eventually(look, 3, "the pods")
    assert machine.now == pytest.approx(1003, abs=1)


def test_a_kernel_that_does_not_count_starvation_gives_plain_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "CPU_PRESSURE", tmp_path / "none")
    assert waiting._starved_seconds() == 0.0
    counted = tmp_path / "cpu"
    counted.write_text("some avg10=24.88 avg60=45.91 avg300=50.40 total=394323582\nfull avg10=0.00 total=7\n")
    monkeypatch.setattr(waiting, "CPU_PRESSURE", counted)
    assert waiting._starved_seconds() == pytest.approx(394.323582)
