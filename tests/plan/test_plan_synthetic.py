"""Synthetic traces are always the same, and have the requested size and shape."""

import pytest

from holdfast.plan.synthetic import BURST_EVERY, BURST_LENGTH, parse_rate, synthesize

HOUR = 3600.0


def test_rates() -> None:
    assert [parse_rate(result) for result in ("200/h", "6/m", "0.5/s", "86400/d")] == [200 / HOUR, 0.1, 0.5, 1.0]


@pytest.mark.parametrize("result", ["", "200", "0/h", "-1/h", "200/w", "x/h", "200/hour"])
def test_other_rates_are_refused(result: str) -> None:
    with pytest.raises(ValueError, match="is not a rate such as"):
        parse_rate(result)


@pytest.mark.parametrize("shape", ["day", "steady", "bursts"])
def test_a_synthetic_trace_has_its_rate_its_holds_and_is_always_the_same(shape: str) -> None:
    trace = synthesize(shape, 200 / HOUR, 90.0, 24 * HOUR, 3)  # type: ignore[arg-type]
    assert trace == synthesize(shape, 200 / HOUR, 90.0, 24 * HOUR, 3)  # type: ignore[arg-type]
    assert 0.93 < len(trace.arrivals) / 4800 < 1.07
    assert 0.93 < trace.held / len(trace.arrivals) / 90 < 1.07
    assert trace.arrivals[0].at == 0
    assert list(trace.tenants) == sorted(trace.tenants, key=list(trace.tenants).index)
    assert set(trace.tenants) == {"tenant-1", "tenant-2", "tenant-3"}


def test_a_day_has_a_night_and_bursts_come_together() -> None:
    day = synthesize("day", 200 / HOUR, 90.0)
    hours = [sum(int(each.at // HOUR) == hour for each in day.arrivals) for hour in range(24)]
    assert max(hours[0:5]) * 5 < min(hours[9:12])
    bursts = synthesize("bursts", 200 / HOUR, 90.0, 24 * HOUR)
    inside = sum((each.at % BURST_EVERY) < BURST_LENGTH + 1 for each in bursts.arrivals)
    assert 0.4 < inside / len(bursts.arrivals) < 0.6


def test_a_trace_without_arrivals_is_refused() -> None:
    with pytest.raises(ValueError, match="would be empty"):
        synthesize("steady", 1e-9, 90.0, 60.0)
