"""A replica dies between two steps of claim, hand-over, release, park, condemn and spawn. Then P1, P2 and P5 are checked."""

import contextlib
import http.client
import signal
from collections.abc import Callable
from typing import Any

import pytest

from fleet import JOB, SESSION, Fleet, eventually
from holdfast.crash_points import POINTS
from holdfast.local.process import send

Make = Callable[..., Fleet]

# The route or duty that passes each point.
IN_REQUEST = {"claim.stored", "handover.protected", "handover.offered", "handover.delivered", "handover.acknowledged"}
AT_END = {"release.stored", "result.stored", "park.stored"}
IN_DUTY = {"condemn.stored", "delete.sent", "bury.confirmed", "spawn.rows", "spawn.created"}


def test_every_point_is_known_here() -> None:
    assert set(POINTS) == IN_REQUEST | AT_END | IN_DUTY


@pytest.mark.parametrize("point", sorted(POINTS))
def test_a_crash_between_two_steps_is_repaired(point: str, make_fleet: Make) -> None:
    fleet = make_fleet(
        replicas=1, pools={"linux": {**JOB, "warm": 1, "drain": {"grace": "2s"}}, "notebook": {**SESSION, "park": {"ttl": "4s"}}}
    )
    stubborn = next(worker["id"] for worker in fleet.warm(2) if worker["pool"] == "linux")
    fleet.kill(0)
    # The only replica crashes at the point, once. The test starts it again, as `up` would.
    crash = {"HOLDFAST_CRASH_AT": point, "HOLDFAST_CRASH_AT_ONCE": str(fleet.home / "crashed")}
    fleet.start(0, **crash)
    runs = fleet.home / "runs"
    job = {"pool": "linux", "command": ["sh", "-c", f"echo x >> {runs}"], "key": "the-job", "wait": "20s", "retry": "lost"}
    session = {"pool": "notebook", "tenant": "acme", "key": "the-session", "wait": "20s"}
    done: dict[str, Any] = {}
    if point == "delete.sent":  # most workers end when they get SIGTERM; this one is paused so that it does not
        send(fleet.agent_of(stubborn), signal.SIGSTOP)
        eventually(lambda: fleet.api("POST", f"/v1/workers/{stubborn}/retire", {"reason": "stubborn"}).status == 200, 20)

    def live() -> bool:
        """Continues from any state. After a crash the caller simply repeats its request."""
        if fleet.replicas[0].poll() is not None:
            assert fleet.replicas[0].returncode == -signal.SIGKILL, fleet.log.read_text()[-2000:]
            done["crashed"] = True
            fleet.start(0, **crash)
        with contextlib.suppress(OSError, http.client.HTTPException):
            claim = fleet.api("POST", "/v1/claims", job)
            if claim.status in (200, 201, 202):
                ended = fleet.see(claim.json["id"], wait="5s")
                done["job"] = ended if ended["state"] == "ended" else None
            held = fleet.api("POST", "/v1/claims", session)
            if held.status in (200, 201) and held.json["state"] == "active":
                done["worker"] = held.json["worker"]
                path = f"/v1/claims/{held.json['id']}/release"
                fleet.api("POST", path, {"fence": held.json["fence"]})
            if held.status in (200, 201) and held.json["state"] == "ended":
                done["session"] = held.json
        return bool(done.get("job") and done.get("session") and (fleet.home / "crashed").exists())

    eventually(live, 120, f"the steps are done and the replica crashed at {point}")
    if not done.get("crashed"):
        assert fleet.replicas[0].wait(300) == -signal.SIGKILL
        fleet.start(0)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 20)

    assert done["job"]["outcome"] == "completed"
    assert runs.read_text() == "x\n", "it ran exactly once"
    assert done["session"]["outcome"] in ("released", "expired")
    eventually(lambda: settled(fleet), 60, "everything is settled")
    fleet.check_promises()


def settled(fleet: Fleet) -> bool:
    """P5: every process has a row, every row has a process, the warm target is met, and nothing is left of ended claims."""
    rows = fleet.sql("SELECT id, state, claim_id FROM holdfast.worker WHERE state <> 'gone'")
    assert {row["state"] for row in rows} <= {"warm"}, rows
    running = {path.name for path in fleet.layout.workers.iterdir() if fleet.processes(path.name)}
    assert running == {row["id"] for row in rows}
    assert len(rows) == 2, rows
    assert not fleet.sql("SELECT id FROM holdfast.claim WHERE state <> 'ended'")
    # Hidden folders are drafts and remains of a killed replica. They are swept later and belong to no worker.
    stamps = [path for path in fleet.layout.workers.glob("[!.]*/stamp.json") if b'"claim"' in path.read_bytes()]
    stamped = [path.parent.name for path in stamps]
    assert not stamped, stamped
    return True
