"""Starts the served API for each test."""

import pytest

from served_api import Stage


@pytest.fixture
def stage(served: Stage) -> Stage:
    return served
