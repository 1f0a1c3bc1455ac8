"""The failure table's rows about replicas: they die, stand still and restart; claims and workers do not notice."""

import contextlib
import signal
from collections.abc import Callable

import pytest

from fleet import JOB, SESSION, Fleet, eventually

Make = Callable[..., Fleet]


def test_a_replica_dies_after_the_claim_is_durable_before_hand_over(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    fleet.warm(1)
    fleet.kill(0)
    fleet.start(0, HOLDFAST_CRASH_AT="claim.stored")
    eventually(lambda: fleet.api("GET", "/readyz", replica=0).status == 200, 20)
    with contextlib.suppress(OSError):
        fleet.claim("linux", command=["true"], key="once", wait="5s")
    assert fleet.replicas[0].wait(20) == -signal.SIGKILL
    claim = fleet.claim("linux", command=["true"], key="once", wait="20s", replica=1)
    ended = fleet.see(claim["id"], wait="20s", replica=1)
    assert (ended["outcome"], ended["attempts"]) == ("completed", 1)
    assert len(fleet.sql("SELECT id FROM holdfast.claim")) == 1
    fleet.check_promises()


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_replica_dies_holding_all_duties_and_another_takes_them(replicas: int, make_fleet: Make) -> None:
    fleet = make_fleet(replicas=replicas, pools={"linux": JOB})
    fleet.warm(1)
    holder = _holder(fleet)
    fleet.kill(holder)
    other = fleet.alive()
    held = lambda: {d["duty"] for d in fleet.api("GET", "/v1/duties", replica=other).json["items"] if _lively(d)}  # noqa: E731
    eventually(lambda: {"match", "deadlines", "converge", "scale", "pools"} <= held(), 25, "all duties succeed again")
    # And they work: a job's worker is replaced.
    claim = fleet.claim("linux", command=["true"], wait="20s", replica=other)
    assert fleet.see(claim["id"], wait="20s", replica=other)["outcome"] == "completed"
    fleet.warm(1, replica=other)


def test_a_paused_replica_is_replaced_and_does_no_harm_when_it_wakes(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}})
    fleet.warm(2)
    holder = _holder(fleet)
    fleet.signal(holder, signal.SIGSTOP)
    other = 1 - holder
    # Agents whose polls hang at the paused one notice after their 20 s; until then two hand-overs of 15 s may stall.
    claim = fleet.claim("linux", command=["sh", "-c", "sleep 20; echo done"], wait="60s", replica=other)
    assert claim["state"] == "active"
    eventually(lambda: _replica_with_duties(fleet, ask=other) == other, 25, "the duties are taken over")
    fleet.signal(holder, signal.SIGCONT)
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


def _lively(duty: dict[str, object]) -> bool:
    age = duty["age"]
    return isinstance(age, float) and age < 4 + (15 if duty["duty"] == "converge" else 3)


def _holder(fleet: Fleet) -> int:
    eventually(lambda: _replica_with_duties(fleet) >= 0, 20, "somebody has the duties")
    return _replica_with_duties(fleet)


def _replica_with_duties(fleet: Fleet, ask: int = 0) -> int:
    found = fleet.api("GET", "/v1/replicas", replica=ask).json["items"]
    holder = next((r for r in found if "converge" in r["duties"] and "match" in r["duties"]), None)
    return fleet.ports.index(holder["port"]) if holder else -1  # between two terms nobody has them
