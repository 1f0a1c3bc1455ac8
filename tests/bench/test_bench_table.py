"""The benchmark itself writes the tables in docs/benchmarks.md, and they show the figures that it measures."""

from pathlib import Path

import pytest

from bench import table
from bench.__main__ import ON_KUBERNETES, PARTS, find
from bench.figure import Figure
from bench.sizes import FULL

FIGURE = Figure("claims to active, 1 client", 1234.5, "claims/s", "bare SQL", 2469.0, 0.6, least=True)


@pytest.mark.parametrize("name", [*PARTS, *ON_KUBERNETES])
def test_the_table_shows_the_figures_that_the_code_measures(name: str) -> None:
    assert table.names(name) == find(name).names(FULL)


def test_a_table_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text("before\n<!-- bench jobs: begin -->\nold\n<!-- bench jobs: end -->\nafter\n")

    table.write("jobs", [FIGURE], path)
    table.write("jobs", [FIGURE], path)  # again, as the next run does

    text = path.read_text()
    assert text.startswith("before\n<!-- bench jobs: begin -->\nMeasured on ")
    assert "| claims to active, 1 client | 1,230 claims/s | bare SQL: 2,470 | 0.5 | ≥ 0.6 | **no** |\n" in text
    assert text.endswith("<!-- bench jobs: end -->\nafter\n")
    assert "old" not in text
    assert table.names("jobs", path) == ["claims to active, 1 client"]


def test_a_document_without_markers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text("nothing\n")

    with pytest.raises(table.NoMarkers, match="bench jobs: begin"):
        table.write("jobs", [FIGURE], path)

    assert path.read_text() == "nothing\n"


def test_a_figure_below_its_floor_or_above_its_ceiling_is_not_met() -> None:
    assert Figure("f", 5, "ms", "limit", 10.0, 0.6, least=True).ok is False
    assert Figure("f", 6, "ms", "limit", 10.0, 0.6, least=True).ok is True
    assert Figure("f", 5, "ms", "limit", 10.0, 0.6).ok is True
    assert Figure("f", 7, "ms", "limit", 10.0, 0.6).ok is False
    assert Figure("f", 7, "ms", "limit", 10.0).ok is None
