"""Settings, targets, percentiles, the recommendation, and how it is shown."""

from typing import Any

import pytest

from holdfast.plan.figures import Figures, Target, parse_start, parse_target, parse_warm, percentile, recommend
from holdfast.plan.report import advice, as_json, bar, plot, table
from holdfast.plan.trace import Arrival, Trace

P95 = Target({"p95": 1.0})


def figures(warm: int, p95: float, hours: float, **more: Any) -> Figures:
    known = {"claims": 10, "refused": 0, "p50": 0.04, "p99": p95, "longest": p95, "utilisation": 0.5, "most_workers": 9}
    return Figures(**{**known, "leapt": 0.0, "statements": 1, **more, "warm": warm, "p95": p95, "worker_hours": hours})


@pytest.mark.parametrize(
    ("result", "meant"),
    [("3", [3]), ("2..5", [2, 3, 4, 5]), ("2..9/3", [2, 5, 8]), ("8,2,4,2", [2, 4, 8]), ("0, 4..6", [0, 4, 5, 6]), ("7..7", [7])],
)
def test_settings_are_numbers_ranges_and_steps(result: str, meant: list[int]) -> None:
    assert parse_warm(result) == meant


@pytest.mark.parametrize("result", ["", "x", "2..", "..4", "5..2", "2..9/0", "-1", "2...4", "1,,2", "0..500", "2..4/", "1.5"])
def test_other_settings_are_refused_with_a_reason(result: str) -> None:
    with pytest.raises(ValueError, match=r"neither|ends before|step|more than"):
        parse_warm(result)


def test_targets_and_start_times() -> None:
    assert parse_target("p95=2s, longest=500ms").limits == {"p95": 2.0, "longest": 0.5}
    assert (parse_start("5s"), parse_start("4s..9s")) == ((5.0, 5.0), (4.0, 9.0))


@pytest.mark.parametrize("result", ["", "p95", "p90=1s", "p95=1", "p95=1s,p95=2s", "p95=-1s"])
def test_other_targets_are_refused(result: str) -> None:
    with pytest.raises(ValueError, match=r"target such as|duration such as|twice"):
        parse_target(result)


def test_a_percentile_is_a_wait_that_really_happened() -> None:
    waits = [float(wait) for wait in range(1, 101)]
    assert [percentile(waits, share) for share in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0
    assert percentile([1.0, 2.0], 50) == 1.0


def test_the_cheapest_setting_that_meets_the_target_is_recommended() -> None:
    found = [figures(2, 4.0, 1.0), figures(4, 1.0, 2.0), figures(6, 0.1, 3.0)]
    assert recommend(found, P95) == found[1]
    assert recommend(found, Target({"p95": 0.5})) == found[2]
    assert recommend(found, Target({"p95": 0.01})) is None


def test_of_equally_cheap_settings_the_smaller_one_is_recommended_and_refusals_never_are() -> None:
    found = [figures(2, 0.1, 1.0, refused=1), figures(5, 0.1, 2.0), figures(4, 0.2, 2.0)]
    assert recommend(found, P95) == found[2]


def test_all_measures_of_a_target_must_hold() -> None:
    assert not Target({"p50": 1.0, "longest": 3.0}).met(figures(2, 4.0, 1.0))
    assert Target({"p50": 1.0, "longest": 4.0}).met(figures(2, 4.0, 1.0))


def test_the_table_marks_what_is_good_enough_and_the_plot_shows_the_target() -> None:
    found = [figures(2, 4.0, 1.0), figures(10, 0.1, 2.0)]
    lines = table(found, P95)
    assert [line[0] for line in lines[1:]] == [" ", "*"]
    assert len({len(line) for line in lines}) == 1
    header, slow, quick = plot(found, P95)
    assert "target 1s ┊" in header
    assert slow.count("█") > 32
    assert quick.index("┊") == 6 + 8  # a quarter of the longest wait


def test_bars_have_eighths_and_anything_more_than_nothing_shows() -> None:
    assert [bar(share, 4) for share in (0.0, 0.0001, 0.25, 0.3125, 1.0)] == ["", "▏", "█", "█▎", "████"]


def test_advice_is_a_setting_or_the_nearest() -> None:
    found = [figures(2, 4.0, 1.0), figures(4, 2.0, 2.0)]
    assert advice([*found, figures(6, 0.5, 3.0)], P95).startswith(
        "recommended: warm: 6 (p95 wait ≤ 1s): p95 500ms, 3.0 worker-hours"
    )
    assert "no setting meets the target" in advice(found, P95)
    assert "the nearest is warm: 4 with p95 2s" in advice(found, P95)


def test_json_says_what_was_run_what_came_of_it_and_what_is_recommended() -> None:
    result = as_json({"name": "linux"}, Trace((Arrival(0.0, 5.0),)), [figures(2, 0.5, 1.0)], P95)
    assert list(result) == ["trace", "pool", "target", "settings", "recommended", "approximated"]
    assert result["trace"] == {"claims": 1, "tenants": 1, "seconds": 5.0, "held_seconds": 5.0, "peak": 1}
    assert (result["target"], result["recommended"], result["settings"][0]["p95"]) == ({"p95": 1.0}, 2, 0.5)
