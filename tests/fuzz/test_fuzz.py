"""A short run with a fixed seed. `make fuzz` runs longer, with another seed each time."""

import asyncio

from fuzz.own_database import own_database
from fuzz.run import BATCH, run
from fuzz.targets import targets
from holdfast.postgres.embedded import EmbeddedPostgres


def test_everything_that_listens_survives_mutated_requests(shared_postgres: EmbeddedPostgres) -> None:
    with asyncio.Runner() as runner, own_database(runner, shared_postgres.dsn) as dsn, targets(dsn) as found:
        assert run(found, seed=1, seconds=3.0) >= 3 * BATCH
