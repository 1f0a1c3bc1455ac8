"""Durations: they are parsed as people write them, and can be parsed again after they were formatted."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.duration import LONGEST, Duration, seconds, text

PARTS = st.lists(st.tuples(st.integers(0, 500), st.sampled_from(["ms", "s", "m", "h"])), min_size=1, max_size=5)
SIZE = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


@pytest.mark.parametrize(
    ("written", "counted"),
    [("0s", 0), ("500ms", 0.5), ("60s", 60), ("1h30m", 5400), ("1m1m", 120), ("007s", 7), ("8784h", LONGEST)],
)
def test_a_duration_is_the_sum_of_its_parts(written: str, counted: float) -> None:
    assert seconds(written) == pytest.approx(counted)


@settings(deadline=None, max_examples=100)
@given(PARTS)
def test_any_sequence_of_parts_is_counted(parts: list[tuple[int, str]]) -> None:
    written = "".join(f"{number}{unit}" for number, unit in parts)
    assert seconds(written) == pytest.approx(sum(number * SIZE[unit] for number, unit in parts))


@pytest.mark.parametrize(
    "written", ["", " ", "5", "s", "5 s", "-5s", "+5s", "1.5s", "5S", "5d", "5s,", "60s\n", "\n60s", "٥s", "5s 5m", "1e3s", "∞h"]
)
def test_what_is_not_a_duration_is_refused_with_what_one_looks_like(written: str) -> None:
    with pytest.raises(ValueError, match="500ms, 60s or 1h30m"):
        seconds(written)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(written, Duration)


@pytest.mark.parametrize("written", ["8785h", "99999h", "527041m", "9" * 30 + "h", "9" * 400 + "h", "9" * 5000 + "ms"])
def test_longer_than_a_year_is_a_mistake_however_long_it_is(written: str) -> None:
    with pytest.raises(ValueError, match="longer than a year"):
        seconds(written)


@settings(deadline=None, max_examples=200)
@given(st.one_of(st.integers(0, 999).map(lambda n: n / 1000), st.integers(0, 3 * 86400).map(float)))
def test_what_is_shown_can_be_written_again_and_is_near(value: float) -> None:
    """Two units are shown, so that a person reads 1h1m and not 1h1m1s. At most one part in sixty is lost."""
    assert seconds(text(value)) == pytest.approx(value, rel=1 / 60, abs=0.0006)


@pytest.mark.parametrize("shown", ["1h30m", "45s", "250ms", "1m30s", "24h", "10m"])
def test_two_units_survive_the_round_trip_as_they_are(shown: str) -> None:
    assert text(seconds(shown)) == shown
