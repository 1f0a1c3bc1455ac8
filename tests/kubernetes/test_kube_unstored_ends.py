"""A park or release that could not be stored is reported to its holder, changes nothing, and can be repeated (seed 003)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import asyncpg
from fleet_probes import worker
from kube_fleet import KubeFleet, Made
from pod_marks import busy_marks, marks
from pool_specs import get, sessions

from fleet import Answer
from waiting import always, eventually

TTL = 10  # seconds
SLACK = 30  # seconds, the limit after a TTL in the failure table, on a busy machine


def test_a_park_or_release_that_could_not_be_stored_is_answered_so_and_nothing_is_lost(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"notebook": sessions(warm=2, park={"ttl": f"{TTL}s"})})
    fleet.warm(2, within=90)
    parks = fleet.claim("notebook", tenant="acme", wait="60s")
    goes = fleet.claim("notebook", tenant="globex", parkTTL="0s", wait="60s")
    pods = {each["id"]: fleet.pod(each["worker"]) for each in (parks, goes)}
    _its_write_waits_in_vain(fleet, parks, pods[parks["id"]])
    _postgres_is_away(fleet, goes, pods[goes["id"]])
    fleet.check_promises()


def _its_write_waits_in_vain(fleet: KubeFleet, claim: dict[str, Any], pod: Any) -> None:
    """Reads succeed, but the one write does not. A worker that looks parked in one place and held in another must not result."""
    with kept_from_writing(fleet, claim["worker"]):
        try_again(release(fleet, claim))
        untouched(fleet, claim, pod)
        seen = fleet.see(claim["id"])
        assert (seen["state"], seen["outcome"]) == ("active", None)
        assert worker(fleet, claim["worker"])["state"] == "held"
    before = now(fleet)
    always(lambda: untouched(fleet, claim, pod), 3, "nothing was begun that goes on by itself")
    assert release(fleet, claim).status == 200, "the same call again"
    row = parked(fleet, claim)
    assert row["parked_since"] >= ended_at(fleet, claim) > before, "its time begins when it was stored"
    eventually(lambda: not parked(fleet, claim), TTL + SLACK, "and ends")
    event = "SELECT at FROM holdfast.event WHERE worker_id = $1 AND kind = 'worker.retiring'"
    gone = eventually(lambda: fleet.sql(event, claim["worker"]), 5, "the event is stored")[0]["at"]
    assert (gone - row["parked_since"]).total_seconds() >= TTL


def _postgres_is_away(fleet: KubeFleet, claim: dict[str, Any], pod: Any) -> None:
    fleet.postgres.stop()
    try_again(release(fleet, claim))
    try_again(release(fleet, claim, replica=1))
    always(lambda: untouched(fleet, claim, pod), 5, "its pod is as it was, and serves")
    fleet.postgres.start()
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 30, "a replica is back")
    assert fleet.see(claim["id"])["state"] == "active", "nothing remembers a release that was refused"
    untouched(fleet, claim, pod)
    eventually(lambda: release(fleet, claim).status == 200, 15, "the same call succeeds")
    ended = fleet.see(claim["id"])
    assert (ended["state"], ended["outcome"]) == ("ended", "released")
    assert release(fleet, claim).status == 200, "and once more, if that answer was lost"
    eventually(
        lambda: (pod := fleet.pod(claim["worker"])) is None or "deletionTimestamp" in pod["metadata"], SLACK, "its pod ends"
    )


# Helpers


def release(fleet: KubeFleet, claim: dict[str, Any], replica: int = 0) -> Answer:
    return fleet.api("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]}, replica=replica)


def try_again(answer: Answer) -> None:
    assert answer.status == 503, answer.raw
    assert int(answer.headers["retry-after"]) > 0
    assert "try again" in answer.json["detail"]


def untouched(fleet: KubeFleet, claim: dict[str, Any], before: Any) -> bool:
    """Returns whether nothing has changed for the API server and for the holder."""
    pod = fleet.pod(claim["worker"]) or {}
    assert pod["metadata"]["uid"] == before["metadata"]["uid"]
    assert "deletionTimestamp" not in pod["metadata"]
    assert marks(pod) == busy_marks(claim)
    return get(claim["endpoint"], claim["credential"]) == 200


def parked(fleet: KubeFleet, claim: dict[str, Any]) -> Any:
    found = fleet.sql("SELECT parked_since FROM holdfast.worker WHERE id = $1 AND state = 'parked'", claim["worker"])
    return found[0] if found else None


def ended_at(fleet: KubeFleet, claim: dict[str, Any]) -> datetime:
    at: datetime = fleet.sql("SELECT ended_at FROM holdfast.claim WHERE id = $1", claim["id"])[0]["ended_at"]
    return at


def now(fleet: KubeFleet) -> datetime:
    at: datetime = fleet.sql("SELECT holdfast.now() AS at")[0]["at"]
    return at


@contextmanager
def kept_from_writing(fleet: KubeFleet, worker: str) -> Iterator[None]:
    """Locks this worker's row for longer than a replica waits for it."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(fleet.postgres.dsn, timeout=60))
    try:
        loop.run_until_complete(connection.execute("BEGIN"))
        loop.run_until_complete(connection.execute("SELECT 1 FROM holdfast.worker WHERE id = $1 FOR UPDATE", worker))
        yield
    finally:
        loop.run_until_complete(connection.close())
        loop.close()
