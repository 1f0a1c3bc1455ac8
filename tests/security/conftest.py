"""Serves the API for tests of attacks on it."""

import pytest

from served_api import Stage


@pytest.fixture
def stage(served: Stage) -> Stage:
    return served
