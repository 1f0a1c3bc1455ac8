"""A tenant floods every route that it may use. Claims of another tenant still take at most twice as long as without the flood."""

import dataclasses

import pytest

from bench.__main__ import find
from bench.fairness import MEDIAN
from bench.figure import Figure
from bench.sizes import TINY

pytestmark = pytest.mark.whole

ROUNDS = 4  # other work on the machine may hit one side of a round; without turns, no round comes close


def test_the_claims_of_another_tenant_take_at_most_twice_as_long() -> None:
    found: list[float | None] = []
    sizes = dataclasses.replace(TINY, flooders=32, flood_seconds=2.0, limits=False)
    part = find("fairness")

    def median(figures: list[Figure]) -> Figure:
        [figure] = [figure for figure in figures if figure.figure == MEDIAN]
        return figure

    with part.stage(sizes) as here:
        for _ in range(ROUNDS):
            figure = median(part.run_on(here, sizes, lambda _: None))
            found.append(figure.ratio)
            if figure.ok:
                return
    raise AssertionError(f"beside the flood, claims took {found} times as long")
