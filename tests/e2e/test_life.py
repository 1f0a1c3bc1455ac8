"""Normal operation of a fleet with two replicas: jobs, sessions, keys, tenants."""

import http.client
from collections.abc import Callable

import pytest

from fleet import JOB, SESSION, Fleet, eventually


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Fleet:
    return make_fleet(replicas=2, pools={"linux": JOB, "notebook": SESSION})


def test_a_job_runs_once_and_its_code_and_output_are_kept(fleet: Fleet) -> None:
    fleet.warm(1)
    claim = fleet.claim("linux", command=["sh", "-c", "echo out of $HOLDFAST_CLAIM; exit 7"], wait="20s")
    ended = fleet.see(claim["id"], wait="20s", replica=1)
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 7)
    output = fleet.api("GET", f"/v1/claims/{claim['id']}/output?follow=true", replica=1)
    assert output.raw.decode() == f"out of {claim['id']}\n"
    eventually(lambda: not fleet.processes(ended["worker"]), 10, "the worker's processes gone")
    eventually(lambda: fleet.api("GET", f"/v1/workers/{ended['worker']}").json["state"] == "gone", 10)
    fleet.check_promises()


def test_a_session_is_reached_with_its_credential_alone(fleet: Fleet) -> None:
    claim = fleet.claim("notebook", tenant="acme", wait="30s")
    assert claim["state"] == "active", claim
    host = claim["endpoint"].removeprefix("http://")
    assert _get(host, claim["credential"]) == 200
    assert _get(host, "hfc_forged") == 401
    released = fleet.api("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]})
    assert released.json["outcome"] == "released"
    eventually(lambda: _get(host, claim["credential"]) == 401, 5, "the credential is dead")
    # The worker is parked for its tenant, and serves it again.
    eventually(lambda: any(w["ready"] for w in fleet.workers("parked")), 10)
    again = fleet.claim("notebook", tenant="acme", wait="30s")
    assert again["worker"] == claim["worker"]
    assert again["credential"] != claim["credential"]


def test_a_worker_that_served_one_tenant_never_serves_another(fleet: Fleet) -> None:
    first = fleet.claim("notebook", tenant="acme", wait="30s")
    fleet.api("POST", f"/v1/claims/{first['id']}/release", {"fence": first["fence"]})
    eventually(lambda: any(w["ready"] for w in fleet.workers("parked")), 10)
    other = fleet.claim("notebook", tenant="rival", wait="40s")
    assert other["state"] == "active"
    assert other["worker"] != first["worker"]


def test_a_key_names_one_claim_live_or_ended(fleet: Fleet) -> None:
    fleet.warm(1)
    request = {"command": ["true"], "key": "nightly", "wait": "20s"}
    claim = fleet.claim("linux", **request)
    fleet.see(claim["id"], wait="20s")
    assert fleet.claim("linux", replica=1, **request)["id"] == claim["id"]
    other = fleet.api("POST", "/v1/claims", {"pool": "linux", "command": ["false"], "key": "nightly"}, replica=1)
    assert (other.status, other.json["code"]) == (409, "key-taken")


def test_secrets_reach_the_command_and_nothing_else(fleet: Fleet) -> None:
    fleet.warm(1)
    claim = fleet.claim("linux", command=["sh", "-c", "test ${#PASS} = 10"], secrets={"PASS": "hunter2xyz"}, wait="20s")
    assert fleet.see(claim["id"], wait="20s")["outcome"] == "completed"
    assert fleet.sql("SELECT * FROM holdfast.claim_secret") == []
    assert "hunter2xyz" not in fleet.log.read_text()
    assert not fleet.sql("SELECT 1 FROM holdfast.event e WHERE e::text LIKE '%hunter2xyz%'")
    assert not fleet.sql("SELECT 1 FROM holdfast.claim c WHERE c::text LIKE '%hunter2xyz%'")


def _get(host: str, credential: str) -> int:
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request("GET", "/", headers={"Authorization": f"Bearer {credential}"})
        return connection.getresponse().status
    finally:
        connection.close()
