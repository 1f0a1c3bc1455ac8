"""The rows of the failure table about Postgres: away, away for longer than every lease, and back with commits lost."""

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import Any

from fleet import JOB, SESSION, Fleet, eventually

Make = Callable[..., Fleet]
SHORT = {**SESSION, "claim": {"lease": "3s"}, "park": {"ttl": "2s"}}


def outage(fleet: Fleet, seconds: float) -> None:
    """Stops Postgres for so many seconds. The waiting time is the fault itself."""
    fleet.postgres.stop()
    time.sleep(seconds)
    fleet.postgres.start()


def test_postgres_away_for_thirty_seconds_ends_nothing_and_loses_nothing(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}, "notebook": SHORT})
    fleet.warm(3)
    session = fleet.claim("notebook", tenant="acme", wait="30s")
    job = fleet.claim("linux", command=["sh", "-c", "sleep 10; echo through it"], wait="30s")
    before = {process.pid for process in fleet.processes()}
    fleet.postgres.stop()
    refused = eventually(
        lambda: (a := fleet.api("POST", "/v1/claims", {"pool": "linux", "command": ["true"]})).status == 503 and a, 30
    )
    assert int(refused.headers["retry-after"]) > 0
    time.sleep(30)
    assert before <= {process.pid for process in fleet.processes()} | _finished(fleet, job), "workers went on"
    fleet.postgres.start()
    # No lease expired, although the outage was ten times as long, because no holder could have renewed it.
    renewed = eventually(
        lambda: (a := fleet.api("POST", f"/v1/claims/{session['id']}/renew", {"fence": session["fence"]})).status != 503 and a, 15
    )
    assert renewed.status == 200, renewed.raw
    assert not fleet.sql("SELECT id FROM holdfast.claim WHERE outcome IN ('expired', 'lost')")
    ended = fleet.see(job["id"], wait="30s")
    assert (ended["outcome"], ended["exit_code"]) == ("completed", 0)
    fresh = eventually(lambda: fleet.claim("linux", command=["true"], wait="20s"), 20)
    assert fleet.see(fresh["id"], wait="20s")["outcome"] == "completed"
    fleet.check_promises()


def test_leases_start_to_run_again_after_the_outage(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"notebook": SHORT})
    session = fleet.claim("notebook", tenant="acme", wait="30s")
    outage(fleet, 8)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 15)
    ended = fleet.see(session["id"], wait="20s")
    assert ended["outcome"] == "expired"
    held = fleet.sql(
        "SELECT extract(epoch FROM ended_at - active_at)::float8 AS s FROM holdfast.claim WHERE id = $1", session["id"]
    )
    assert held[0]["s"] > 8 + 2, "the outage did not count"


def test_a_release_that_could_not_be_stored_is_reported_to_the_holder(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"notebook": SHORT})
    session = fleet.claim("notebook", tenant="acme", wait="30s")
    fleet.postgres.stop()
    answer = fleet.api("POST", f"/v1/claims/{session['id']}/release", {"fence": session["fence"]})
    assert answer.status == 503
    fleet.postgres.start()
    ended = eventually(lambda: (s := fleet.see(session["id"]))["state"] == "ended" and s, 30)
    assert ended["outcome"] == "expired"  # by its lease, as the holder was informed


def test_a_database_restored_from_an_earlier_backup_is_noticed_and_nothing_is_reaped(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}, "notebook": SESSION})
    fleet.warm(3)
    old = fleet.claim("linux", command=["sh", "-c", "sleep 60; echo old"], wait="30s")
    backup = fleet.home / "backup"
    fleet.postgres.base_backup(backup)
    # The backup does not contain these: a job, a session, and a job that has ended since.
    job = fleet.claim("linux", command=["sh", "-c", "sleep 45; echo new"], wait="30s")
    session = fleet.claim("notebook", tenant="acme", wait="30s")
    assert (job["state"], session["state"]) == ("active", "active")
    busy = [*fleet.processes(job["worker"]), *fleet.processes(session["worker"])]
    fleet.postgres.stop()
    fleet.postgres.restore(backup)
    fleet.postgres.start()
    state = eventually(lambda: _installation(fleet)["recoveries"] >= 1 and _installation(fleet), 30, "the loss is noticed")
    assert state["epoch"] == 2
    eventually(lambda: _installation(fleet)["recovering_since"] is None, 70, "recovery ends")
    adopted = fleet.see(job["id"])
    assert (adopted["state"], adopted["worker"], adopted["fence"]) == ("active", job["worker"], job["fence"])
    again = fleet.see(session["id"])
    assert (again["state"], again["tenant"], again["credential"]) == ("active", "acme", session["credential"])
    renewed = fleet.api("POST", f"/v1/claims/{session['id']}/renew", {"fence": session["fence"]})
    assert renewed.status == 200
    assert {p.pid for p in busy} <= {p.pid for p in fleet.processes()}, "nothing was reaped"
    assert fleet.see(old["id"], wait="60s")["outcome"] == "completed"
    assert fleet.see(job["id"], wait="60s")["outcome"] == "completed"
    new = fleet.claim("linux", command=["true"], wait="30s")
    assert new["fence"] > max(job["fence"], session["fence"]), "fences only grow"
    fleet.check_promises()


def test_a_list_that_cannot_be_read_ends_nothing(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    fleet.warm(1)
    started = fleet.home / "started"
    claim = fleet.claim("linux", command=["sh", "-c", f"touch {started}; sleep 200; echo kept"], wait="30s")
    eventually(started.exists, 20, "the command has started")
    away = fleet.layout.workers.with_name("away")
    fleet.layout.workers.rename(away)
    before = fleet.sql("SELECT skips FROM holdfast.term WHERE duty = 'converge'")[0]["skips"]
    eventually(
        lambda: fleet.sql("SELECT skips FROM holdfast.term WHERE duty = 'converge'")[0]["skips"] > before,
        40,
        "passes are skipped",
    )
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(fleet.layout.workers)  # removes empty folders that were made in between
    away.rename(fleet.layout.workers)
    passes = "SELECT success_at FROM holdfast.term WHERE duty = 'converge'"
    healed = fleet.sql(passes)[0]["success_at"]
    eventually(lambda: fleet.sql(passes)[0]["success_at"] > healed, 40, "a good list again")
    held = fleet.see(claim["id"])
    assert held["state"] == "active", held
    assert fleet.processes(claim["worker"])


def _installation(fleet: Fleet) -> dict[str, Any]:
    return fleet.sql("SELECT epoch, recoveries, recovering_since FROM holdfast.installation")[0]


def _finished(fleet: Fleet, job: dict[str, Any]) -> set[int]:
    """Returns the worker's PIDs, or all PIDs if the job has a result, because its processes may end while Postgres is away."""
    path = fleet.layout.workers / job["worker"] / "result.json"
    return {process.pid for process in fleet.processes(job["worker"])} | (set(range(1, 2**22)) if path.exists() else set())
