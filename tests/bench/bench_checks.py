"""The checks that every part of the benchmark must pass, independent of its speed."""

from bench.figure import Figure
from bench.part import Part
from bench.sizes import TINY


def check(part: Part, found: list[Figure]) -> None:
    """Asserts that each figure is there under its name, positive, and has a limit."""
    assert [figure.figure for figure in found] == part.names(TINY)
    for figure in found:
        assert figure.value > 0, figure.line()
        assert figure.unit, figure.line()
        assert figure.limit, figure.line()
        assert figure.limit_value is not None, figure.line()
        assert figure.limit_value > 0, figure.line()


def ignore(figure: Figure) -> None:
    """Discards a figure, because the check reads all of them at the end."""
