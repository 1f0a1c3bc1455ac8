"""Two checkouts are measured by the same benchmark and compared figure by figure."""

import subprocess
import sys

import pytest

from bench import ROOT, against


def test_ratios_are_those_of_each_round() -> None:
    rounds = [({"rate": (here, "1/s")}, {"rate": (there, "1/s")}) for here, there in ((10.0, 5.0), (30.0, 10.0), (8.0, 8.0))]

    lines = against.compare(rounds)

    assert lines[1].split() == ["rate", "(1/s)", "10", "8", "2.00"]


def test_a_figure_that_the_other_checkout_lacks_is_left_out() -> None:
    assert len(against.compare([({"new": (1.0, "s"), "old": (1.0, "s")}, {"old": (1.0, "s")})])) == 2


@pytest.mark.whole
def test_both_checkouts_are_measured_and_the_other_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert against.main(["HEAD", "growth", "--tiny", "--rounds", "1"]) == 0

    assert "draining 500 waiting claims (claims/s)" in capsys.readouterr().out
    assert "hf-against-" not in _worktrees()


def test_the_other_checkouts_package_is_the_one_that_runs() -> None:
    with against.worktree("HEAD") as there:
        (there / "src" / "holdfast" / "wiring.py").write_text("raise SystemExit(7)\n")

        with pytest.raises(SystemExit, match="ended with 7"):
            against.measure(there, ["growth"], ["--tiny"])


@pytest.mark.parametrize("part", against.PARTS)
def test_a_checkout_that_lacks_what_only_the_limits_use_can_be_measured_without_them(part: str) -> None:
    renamed = "import holdfast.up, holdfast.wiring, holdfast.model.effect as effect; del effect.Done"
    script = f"{renamed}; from bench.__main__ import find; print(find({part!r}).name)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"{part}\n", done.stderr


def test_an_unknown_revision_is_refused() -> None:
    with pytest.raises(SystemExit, match="no-such-revision"):
        against.main(["no-such-revision"])


def _worktrees() -> str:
    return subprocess.run(["git", "-C", str(ROOT), "worktree", "list"], capture_output=True, text=True, check=True).stdout
