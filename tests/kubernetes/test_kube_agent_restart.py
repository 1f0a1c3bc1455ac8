"""A session outlives its agent: restarted alone, it takes the claim up again with the same fence and credential."""

import os
import signal

from kube_fleet import KubeFleet, Made
from seed_tools import get, sessions

from holdfast.kubernetes import names
from kube.pods import told
from waiting import eventually


def test_a_session_goes_on_when_its_agent_alone_is_killed(fleet_of: Made) -> None:
    """As for its memory limit: the worker's container lives, and its holder notices a moment's silence at most."""
    fleet = fleet_of(pools={"notebook": sessions()})
    uid = fleet.warm(1, within=90)[0]["uid"]
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    assert get(held["endpoint"], held["credential"]) == 200
    kill_agent(fleet, held["worker"], uid)
    eventually(lambda: get(held["endpoint"], held["credential"]) == 200, 30, "its holder gets in again")
    assert get(held["endpoint"], "hfc_wrong") == 401
    after = fleet.see(held["id"])
    assert (after["state"], after["fence"], after["worker"]) == ("active", held["fence"], held["worker"])
    assert fleet.api("POST", f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}).status == 200
    eventually(lambda: get(held["endpoint"], held["credential"]) == 401, 10, "its credential is dead")
    again = fleet.claim("notebook", tenant="acme", wait="30s")
    assert again["worker"] == held["worker"], "reset and parked, as after any claim"


def test_a_claim_that_ended_while_its_agent_was_away_lets_nobody_in(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"notebook": sessions()})
    uid = fleet.warm(1, within=90)[0]["uid"]
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    agent = fleet.kubelet.pid(uid, names.AGENT)
    assert agent is not None
    fleet.kubelet.pause()  # what is killed now is not started again yet
    try:
        os.kill(agent, signal.SIGKILL)
        assert fleet.api("POST", f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}).status == 200
    finally:
        fleet.kubelet.resume()
    again = fleet.claim("notebook", tenant="acme", wait="60s")
    assert again["worker"] == held["worker"], "reset and parked, as after any claim"
    assert get(again["endpoint"], held["credential"]) == 401
    assert get(again["endpoint"], again["credential"]) == 200


def kill_agent(fleet: KubeFleet, worker: str, uid: str) -> None:
    agent = fleet.kubelet.pid(uid, names.AGENT)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)

    def restarted() -> bool:
        pod = fleet.pod(worker)
        return pod is not None and told(pod, names.AGENT)["restartCount"] == 1 and "running" in told(pod, names.AGENT)["state"]

    eventually(restarted, 30, "its kubelet starts it again")
