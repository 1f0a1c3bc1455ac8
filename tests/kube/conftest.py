"""The fixtures of `kube.fixtures` for the tests here, and one loud line when they cannot run."""

import os

import pytest

from kube import binaries
from kube.fixtures import *  # noqa: F403


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = binaries.missing()
    here = [each for each in items if each.path.is_relative_to(os.path.dirname(__file__))]
    if lacking and here and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            os.write(2, f"\n!!! THE KUBERNETES TESTS DO NOT RUN: {lacking}\n".encode())
