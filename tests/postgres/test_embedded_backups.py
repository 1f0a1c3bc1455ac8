"""A private Postgres is restored from a base backup completely or not at all."""

from pathlib import Path

import pytest

from holdfast.postgres.embedded import EmbeddedPostgres, PostgresFailed
from postgres.private_postgres import ask


def test_a_backup_takes_the_place_of_the_cluster(pg: EmbeddedPostgres, reachable: Path) -> None:
    pg.start()
    ask(pg.dsn, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    pg.base_backup(reachable / "backup")
    ask(pg.dsn, "UPDATE kept SET n = 8", "SELECT 1")
    with pytest.raises(PostgresFailed, match="stop it"):
        pg.restore(reachable / "backup")
    pg.stop()
    pg.restore(reachable / "backup")
    pg.start()
    assert ask(pg.dsn, "SELECT n FROM kept") == 7
    elsewhere = EmbeddedPostgres(reachable / "elsewhere", pg.bin_dir)
    elsewhere.restore(reachable / "backup")
    elsewhere.start()
    assert ask(elsewhere.dsn, "SELECT n FROM kept") == 7
    assert elsewhere.pid != pg.pid


def test_a_restore_that_was_cut_off_is_not_taken_for_a_new_cluster(pg: EmbeddedPostgres, reachable: Path) -> None:
    pg.start()
    pg.base_backup(reachable / "backup")
    pg.stop()
    pg.cluster.rename(pg.cluster.with_name("cluster.old"))
    with pytest.raises(PostgresFailed, match="is not empty"):
        pg.start()
    pg.restore(reachable / "backup")
    pg.start()
    assert ask(pg.dsn, "SELECT 1") == 1
    assert not pg.cluster.with_name("cluster.old").exists()
