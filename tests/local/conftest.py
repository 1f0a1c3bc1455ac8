"""Ends the processes that a test left running, each by its identity."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_stage import LocalStage


@pytest.fixture
def stage() -> Iterator[LocalStage]:
    with tempfile.TemporaryDirectory(prefix="hf-") as home:
        made = LocalStage(Path(home))
        try:
            yield made
        finally:
            made.end_everything()
