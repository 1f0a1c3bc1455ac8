"""A private Postgres that root starts runs as another account, and can reach its binaries and its data."""

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.postgres import embedded
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
from postgres.private_postgres import ask

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root must hand the server to another account")


@only_root
def test_root_hands_it_to_an_account_that_may_do_nothing_else(first: EmbeddedPostgres) -> None:
    first.start()
    status = Path(f"/proc/{first.pid}/status").read_text()
    uids, groups = (re.search(rf"^{name}:[ \t]*(.*)$", status, re.M) for name in ("Uid", "Groups"))
    assert uids is not None
    assert "0" not in uids[1].split()
    assert groups is not None
    assert groups[1].split() in ([], [str(first.cluster.stat().st_gid)])


@only_root
def test_behind_roots_private_folder_the_cluster_lives_in_a_shared_place(reachable: Path) -> None:
    (reachable / "private").mkdir(mode=0o700)
    pg = EmbeddedPostgres(reachable / "private" / "postgres", find_binaries())
    pg.start()
    assert ask(pg.dsn, "SELECT 1") == 1
    assert pg.data_dir.readlink().parent == reachable / "shared"
    pg.stop()
    pg.data_dir.unlink()
    pg.start()  # the pointer is gone, so a new cluster is made and the old one is never used
    assert len(list((reachable / "shared").glob("postgres-*"))) == 2


@only_root
def test_binaries_in_roots_private_folder_are_copied_once(reachable: Path) -> None:
    wheel, hidden = find_binaries().parent, reachable / "hidden"
    hidden.mkdir(mode=0o700)
    shutil.copytree(wheel, hidden / "package" / wheel.name, ignore=shutil.ignore_patterns("include"))
    libs = wheel.parent.with_name(wheel.parent.name + ".libs")
    shutil.copytree(libs, hidden / libs.name)
    (hidden / "package").rename(hidden / wheel.parent.name)
    pg = EmbeddedPostgres(reachable / "postgres", find_binaries(str(hidden / wheel.parent.name / wheel.name / "bin")))
    pg.start()
    assert ask(pg.dsn, "SELECT 1") == 1
    pg.stop()
    pg.start()
    assert len(list((reachable / "shared").iterdir())) == 1


@only_root
def test_a_plain_user_runs_it_as_himself(reachable: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    source = Path(embedded.__file__).parents[2]
    check = f"import sys; sys.path.insert(0, {str(source)!r}); import holdfast.postgres.embedded"

    def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
        ids = nobody.pw_uid, nobody.pw_gid
        return subprocess.run(command, capture_output=True, text=True, cwd="/", user=ids[0], group=ids[1], extra_groups=[])

    def can(python: str) -> bool:
        try:
            return as_nobody(python, "-c", check).returncode == 0
        except OSError:
            return False

    python = next(filter(can, (sys.executable, "/usr/bin/python3")), None)
    if python is None:
        pytest.skip(f"nobody can run neither {sys.executable} nor a system python that reads {source}")
    home = reachable / "home"
    home.mkdir(mode=0o700)
    shutil.chown(home, nobody.pw_uid, nobody.pw_gid)
    story = (
        f"{check}; from pathlib import Path\n"
        "pg = holdfast.postgres.embedded.EmbeddedPostgres(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "pg.start(); pg.stop(); pg.start(); print(pg.dsn)"
    )
    ran = as_nobody(python, "-c", story, str(home / "postgres"), str(find_binaries()))
    assert ran.returncode == 0, ran.stderr
    pg = EmbeddedPostgres(home / "postgres", find_binaries())
    assert Path(f"/proc/{pg.pid}").stat().st_uid == nobody.pw_uid
    assert ask(ran.stdout.strip(), "SELECT 1") == 1
    pg.stop()  # and later root continues as the account that owns it
    pg.start()
    assert Path(f"/proc/{pg.pid}").stat().st_uid == nobody.pw_uid
