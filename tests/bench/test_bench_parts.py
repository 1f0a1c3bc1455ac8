"""Each part of `make bench` runs with tiny sizes and shows all its figures. Their speed is not judged here."""

from collections.abc import Iterator

import pytest
from bench_checks import check, ignore

from bench.__main__ import PARTS, find
from bench.claims import staged
from bench.sizes import TINY
from bench.stage import Stage

pytestmark = pytest.mark.whole

WITH_REPLICA = ("jobs", "sessions", "leases", "fairness", "statements")


@pytest.fixture(scope="module")
def place() -> Iterator[Stage]:
    """A replica with hollow pods. The parts share it here, because its start takes longer than a tiny part."""
    with staged(TINY) as here:
        yield here


@pytest.mark.parametrize("name", WITH_REPLICA)
def test_every_figure_of_a_part_with_a_replica_is_there_with_its_limit(name: str, place: Stage) -> None:
    part = find(name)
    check(part, part.run_on(place, TINY, ignore))


@pytest.mark.parametrize("name", [name for name in PARTS if name not in WITH_REPLICA])
def test_every_figure_of_a_part_without_a_replica_is_there_with_its_limit(name: str) -> None:
    part = find(name)
    check(part, part.run(TINY, ignore))
