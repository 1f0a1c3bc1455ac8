"""What a test leaves running is ended here, each process by its identity."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("contracts.cluster")

from local_stage import LocalStage  # noqa: E402


@pytest.fixture
def stage() -> Iterator[LocalStage]:
    with tempfile.TemporaryDirectory(prefix="hf-") as home:
        made = LocalStage(Path(home))
        try:
            yield made
        finally:
            made.end_everything()
