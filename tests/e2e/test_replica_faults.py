"""The rows of the failure table about replicas: they die, hang and restart, and claims and workers are not affected."""

import contextlib
import signal
from collections.abc import Callable
from datetime import datetime

import pytest

from fleet import JOB, SESSION, Fleet, eventually

Make = Callable[..., Fleet]
PERIODIC = {"match", "deadlines", "converge", "scale", "pools"}  # without `prune`, which runs too rarely to wait for
TERMS = "SELECT t.duty, r.pid FROM holdfast.term t JOIN holdfast.replica r ON r.id = t.holder"


def test_a_replica_dies_after_the_claim_is_durable_before_hand_over(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    fleet.warm(1)
    fleet.kill(0)
    fleet.start(0, HOLDFAST_CRASH_AT="claim.stored")
    eventually(lambda: fleet.api("GET", "/readyz", replica=0).status == 200, 20)
    with contextlib.suppress(OSError):
        fleet.claim("linux", command=["true"], key="once", wait="5s")
    assert fleet.replicas[0].wait(300) == -signal.SIGKILL
    claim = fleet.claim("linux", command=["true"], key="once", wait="20s", replica=1)
    ended = fleet.see(claim["id"], wait="20s", replica=1)
    assert (ended["outcome"], ended["attempts"]) == ("completed", 1)
    assert len(fleet.sql("SELECT id FROM holdfast.claim")) == 1
    fleet.check_promises()


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_replica_dies_holding_duties_and_another_takes_them(replicas: int, make_fleet: Make) -> None:
    fleet = make_fleet(replicas=replicas, pools={"linux": JOB})
    fleet.warm(1)
    # On a quiet machine the first replica has all duties. On a busy machine they may be spread, and may move at any time.
    victim = _replica_with_most_duties(fleet)
    fleet.kill(victim)
    dead = fleet.replicas[victim].pid
    orphaned = {row["duty"] for row in fleet.sql(f"{TERMS} WHERE r.pid = $1", dead)}
    assert orphaned, "a term that is held is longer than the moment between the look and the end"
    died_at = fleet.sql("SELECT holdfast.now() AS at")[0]["at"]
    other = fleet.alive()
    eventually(lambda: not fleet.sql(f"{TERMS} WHERE r.pid = $1", dead), 25, f"{orphaned} are taken over")
    eventually(lambda: _succeeded_since(fleet, died_at) >= PERIODIC, 25, "all duties succeed again")
    # And the duties work: a job's worker is replaced.
    claim = fleet.claim("linux", command=["true"], wait="20s", replica=other)
    assert fleet.see(claim["id"], wait="20s", replica=other)["outcome"] == "completed"
    fleet.warm(1, replica=other)


def test_a_paused_replica_is_replaced_and_does_no_harm_when_it_wakes(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}})
    fleet.warm(2)
    paused = _replica_with_most_duties(fleet)
    fleet.signal(paused, signal.SIGSTOP)
    other = 1 - paused
    # Agents whose polls hang at the paused replica notice it after 20 s. Until then two hand-overs of 15 s may stall.
    claim = fleet.claim("linux", command=["sh", "-c", "sleep 20; echo done"], wait="60s", replica=other)
    assert claim["state"] == "active"
    eventually(lambda: _duties_held(fleet).get(other, set()) >= PERIODIC, 25, "the duties are taken over")
    fleet.signal(paused, signal.SIGCONT)
    ended = fleet.see(claim["id"], wait="40s", replica=other)
    assert ended["outcome"] == "completed"
    fleet.check_promises()


def test_all_replicas_restart_at_once_and_nothing_is_touched(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB, "notebook": SESSION})
    session = fleet.claim("notebook", tenant="acme", wait="30s")
    job = fleet.claim("linux", command=["sh", "-c", "sleep 6; echo survived"], wait="30s")
    assert (session["state"], job["state"]) == ("active", "active")
    for n in (0, 1):
        fleet.kill(n)
    for n in (0, 1):
        fleet.start(n)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 20)
    assert fleet.see(job["id"], wait="30s")["outcome"] == "completed"
    assert fleet.api("GET", f"/v1/claims/{job['id']}/output").raw == b"survived\n"
    still = fleet.see(session["id"])
    assert (still["state"], still["worker"], still["fence"]) == ("active", session["worker"], session["fence"])
    renewed = fleet.api("POST", f"/v1/claims/{session['id']}/renew", {"fence": session["fence"]})
    assert renewed.status == 200
    fleet.check_promises()


def test_two_jobs_started_through_three_replicas_each_run_once(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=3, pools={"linux": {**JOB, "warm": 3}})
    fleet.warm(3)
    marks = fleet.home / "ran"
    marks.mkdir()
    claims = [fleet.claim("linux", replica=n % 3, wait="30s", command=["sh", "-c", f"echo x >> {marks}/{n}"]) for n in range(6)]
    for claim in claims:
        assert fleet.see(claim["id"], wait="30s", replica=1)["outcome"] == "completed"
    assert [(marks / str(n)).read_text() for n in range(6)] == ["x\n"] * 6


def _replica_with_most_duties(fleet: Fleet) -> int:
    held = eventually(lambda: _duties_held(fleet), 20, "a replica has duties")
    return max(held, key=lambda n: len(held[n]))


def _duties_held(fleet: Fleet) -> dict[int, set[str]]:
    """Returns the duties of each replica that has any. Between two terms a duty has no holder."""
    number = {process.pid: n for n, process in fleet.replicas.items()}
    held: dict[int, set[str]] = {}
    for row in fleet.sql(f"{TERMS} WHERE t.until > holdfast.now()"):
        held.setdefault(number[row["pid"]], set()).add(row["duty"])
    return held


def _succeeded_since(fleet: Fleet, moment: datetime) -> set[str]:
    return {row["duty"] for row in fleet.sql("SELECT duty FROM holdfast.term WHERE success_at > $1", moment)}
