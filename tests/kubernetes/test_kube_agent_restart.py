"""A session survives a restart of its agent: the agent continues the claim with the same fence and credential."""

import os
import signal
import urllib.error
from typing import Any

from kube_fleet import KubeFleet, Made
from pool_specs import get, sessions

from cluster_pods import container_status
from holdfast.kubernetes import names
from waiting import eventually


def test_a_session_goes_on_when_its_agent_alone_is_killed(fleet_of: Made) -> None:
    """The agent is killed as if for its memory limit. The worker's container lives, and its holder notices little."""
    fleet = fleet_of(pools={"notebook": sessions()})
    uid = fleet.warm(1, within=90)[0]["uid"]
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    assert get(held["endpoint"], held["credential"]) == 200
    moved = sessions(worker={"port": 9191})
    assert fleet.api("PUT", "/v1/pools/notebook", moved).status == 200, "its pod is of an older revision from now on"
    kill_agent(fleet, held["worker"], uid)
    statuses = list[int]()

    def lets_in() -> bool:
        statuses.append(get(held["endpoint"], held["credential"]))
        return statuses[-1] == 200

    eventually(lets_in, 30, "its holder gets in again")
    assert 401 not in statuses, "a client would take that for the end"
    assert get(held["endpoint"], "hfc_wrong") == 401
    after = fleet.see(held["id"])
    assert (after["state"], after["fence"], after["worker"]) == ("active", held["fence"], held["worker"])
    assert fleet.api("POST", f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}).status == 200
    eventually(lambda: shut_out(held), 30, "its credential is dead; its worker is of an old revision and goes")


def test_an_agent_that_is_restarted_after_its_claim_knows_that_it_has_served(fleet_of: Made) -> None:
    """Otherwise a database that lost this claim would treat the worker as new, and give it to another tenant."""
    fleet = fleet_of(pools={"notebook": sessions()})
    uid = fleet.warm(1, within=90)[0]["uid"]
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    assert fleet.api("POST", f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}).status == 200
    served = "SELECT reset_fence FROM holdfast.heartbeat WHERE worker_id = $1 AND doing = 'idle' AND reset_fence IS NOT NULL"
    eventually(lambda: fleet.sql(served, held["worker"]), 30, "it is reset and has reported so")
    fleet.sql("UPDATE holdfast.heartbeat SET reset_fence = NULL WHERE worker_id = $1", held["worker"])
    kill_agent(fleet, held["worker"], uid)
    eventually(lambda: fleet.sql(served, held["worker"]), 60, "and has reported so again")
    again = fleet.claim("notebook", tenant="acme", wait="30s")
    assert again["worker"] == held["worker"], "reset and parked, as after any claim"


def test_a_claim_that_ended_while_its_agent_was_away_gives_no_access(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"notebook": sessions()})
    uid = fleet.warm(1, within=90)[0]["uid"]
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    agent = fleet.kubelet.pid(uid, names.AGENT)
    assert agent is not None
    fleet.kubelet.pause()  # so that a killed container is not restarted yet
    try:
        os.kill(agent, signal.SIGKILL)
        assert fleet.api("POST", f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}).status == 200
    finally:
        fleet.kubelet.resume()
    again = fleet.claim("notebook", tenant="acme", wait="60s")
    assert again["worker"] == held["worker"], "reset and parked, as after any claim"
    assert get(again["endpoint"], held["credential"]) == 401
    assert get(again["endpoint"], again["credential"]) == 200


def shut_out(held: dict[str, Any]) -> bool:
    try:
        return get(held["endpoint"], held["credential"]) == 401
    except urllib.error.URLError:
        return True  # no process is left


def kill_agent(fleet: KubeFleet, worker: str, uid: str) -> None:
    agent = fleet.kubelet.pid(uid, names.AGENT)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)

    def restarted() -> bool:
        pod = fleet.pod(worker)
        return (
            pod is not None
            and container_status(pod, names.AGENT)["restartCount"] == 1
            and "running" in container_status(pod, names.AGENT)["state"]
        )

    eventually(restarted, 30, "its kubelet starts it again")
