"""A PgBouncer before the shared Postgres, and a store that is reached through it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bouncer import PgBouncer
from holdfast.postgres.embedded import EmbeddedPostgres


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account can reach, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="hf-")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def bouncer(shared_postgres: EmbeddedPostgres, place: Path) -> Iterator[PgBouncer]:
    with PgBouncer(shared_postgres, place / "bouncer") as bouncer:
        yield bouncer
