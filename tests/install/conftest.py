"""Prints one warning if the tests of the chart cannot run."""

import os
from pathlib import Path

import pytest

from install import helm


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = helm.missing()
    here = [each for each in items if each.path.is_relative_to(Path(__file__).parent)]
    if lacking and here and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            os.write(2, f"\n!!! THE CHART'S TESTS DO NOT RUN: {lacking}\n".encode())
