"""The demo counts nothing lost, doubled or leaked, and leaves neither a process nor a file behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demos import counts_nothing_wrong, leaves_nothing_when_interrupted, own_folder, start


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        yield path


def test_the_demo_counts_nothing_wrong_and_leaves_nothing(folder: Path) -> None:
    demo = start("holdfast.demo", folder, "--calm", "3", "--outage", "8")
    counts_nothing_wrong(demo, folder, steps=6, within=170)


@pytest.mark.parametrize("step", ["1  A fleet starts", "4  Postgres is stopped"])
def test_an_interrupted_demo_leaves_nothing(folder: Path, step: str) -> None:
    leaves_nothing_when_interrupted(start("holdfast.demo", folder, "--calm", "1"), folder, step)
