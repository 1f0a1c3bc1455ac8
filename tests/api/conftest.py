"""Starts the served API for each test."""

from collections.abc import Iterator

import pytest
from served_api import Stage, staged


@pytest.fixture
def stage(dsn: str) -> Iterator[Stage]:
    with staged(dsn) as stage:
        yield stage
