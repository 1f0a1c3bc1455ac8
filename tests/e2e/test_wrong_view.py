"""A replica that sees wrong pods, or none, ends nothing: another data directory, an unmounted one, an unreadable mark."""

import os
import subprocess
import sys
from collections.abc import Callable

from fleet import JOB, Fleet, eventually

Make = Callable[..., Fleet]


def test_a_replica_of_another_data_directory_refuses_the_database(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    claim = fleet.claim("linux", command=["sleep", "120"], wait="30s")
    arguments = ["serve", "--data-dir", str(fleet.home / "another"), "--port", str(fleet.ports[0] + 1)]
    env = {**os.environ, "HOLDFAST_DSN": fleet.postgres.dsn}
    done = subprocess.run([sys.executable, "-m", "holdfast", *arguments], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "belongs to installation" in done.stderr
    assert fleet.postgres.dsn not in done.stderr
    assert fleet.see(claim["id"])["state"] == "active"


def test_workers_whose_folder_is_not_mounted_at_the_start_are_not_taken_for_dead(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    begun = fleet.home / "begun"
    claim = fleet.claim("linux", command=["sh", "-c", f"touch {begun}; sleep 200"], wait="30s")
    eventually(begun.exists, 30, "its command runs")
    fleet.kill(0)
    away = fleet.layout.workers.with_name("away")
    fleet.layout.workers.rename(away)
    fleet.start(0)
    skips = "SELECT skips FROM holdfast.term WHERE duty = 'converge'"
    before = fleet.sql(skips)[0]["skips"]
    eventually(lambda: fleet.sql(skips)[0]["skips"] > before, 60, "passes are skipped")
    assert fleet.sql("SELECT state FROM holdfast.claim WHERE id = $1", claim["id"])[0]["state"] == "active"
    fleet.kill(0)
    for path in fleet.layout.workers.iterdir():
        assert path.name.startswith("."), "nothing was started in the wrong place"
    fleet.layout.workers.rename(fleet.home / "wrong")
    away.rename(fleet.layout.workers)
    fleet.start(0)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 20)
    assert fleet.see(claim["id"])["state"] == "active"
    assert fleet.processes(claim["worker"])


def test_a_replica_that_cannot_read_the_mark_does_nothing_and_shows_why(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    claim = fleet.claim("linux", command=["sleep", "200"], wait="30s")
    fleet.warm(1)
    fleet.kill(0)
    kept = fleet.layout.highwater.read_bytes()
    fleet.layout.highwater.write_bytes(kept[:-5])
    fleet.start(0)
    refused = eventually(lambda: (a := fleet.api("GET", "/readyz")).status == 503 and b"marks not yet" in a.raw and a, 20)
    assert f"marks not yet compared: cannot read {fleet.layout.highwater}" in refused.json["detail"]
    waiting = fleet.claim("linux", command=["true"], wait="2s")
    assert waiting["state"] == "waiting", "a worker is free, and this may be the wrong database"
    fleet.layout.highwater.write_bytes(kept)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 20)
    assert fleet.see(waiting["id"], wait="20s")["outcome"] == "completed"
    assert fleet.see(claim["id"])["state"] == "active"
