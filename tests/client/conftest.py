"""Starts a fake server for each test."""

from collections.abc import Iterator

import pytest
from fake_holdfast import FakeHoldfast


@pytest.fixture
def server() -> Iterator[FakeHoldfast]:
    fake = FakeHoldfast(replicas=2)
    yield fake
    fake.close()
