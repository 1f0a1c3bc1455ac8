"""Tokens of agents: the cluster's token is reviewed once, then a short-lived token of Holdfast is valid at any replica."""

from fleet_probes import metric, worker
from kube_fleet import KubeFleet
from pool_specs import get, jobs, sessions

from holdfast_testcluster.access import Access
from holdfast_testcluster.control_plane import ControlPlane
from waiting import eventually

POLLS = 'holdfast_http_requests_total{route="POST /v1/worker/poll",status="200"}'


def test_an_agents_token_is_reviewed_once_however_often_it_asks_and_whichever_replica(
    own_fleet: KubeFleet, own_control_plane: ControlPlane
) -> None:
    fleet, plane = own_fleet, own_control_plane
    for name, spec in {"linux": jobs(warm=2), "notebook": sessions(warm=1, park={"ttl": "10m"})}.items():
        assert fleet.api("PUT", f"/v1/pools/{name}", spec).status == 201
    one_review_each(fleet, plane, agents=3)
    _a_job_and_many_sessions(fleet)
    one_review_each(fleet, plane, agents=3 + 2)  # the replacements of a job's worker and of a kept session's worker
    _every_replica_in_turn(fleet)
    one_review_each(fleet, plane, agents=3 + 2)


def _a_job_and_many_sessions(fleet: KubeFleet) -> None:
    done = fleet.see(fleet.claim("linux", command=["true"], wait="30s")["id"], wait="60s")
    assert done["outcome"] == "completed", fleet.last_log()
    before, served = metric(fleet, POLLS), set[str]()
    for n in range(5):
        held = fleet.claim("notebook", tenant="acme", wait="60s", replica=n % 2)
        assert get(held["endpoint"], held["credential"]) == 200
        release = {"fence": held["fence"]}
        assert fleet.api("POST", f"/v1/claims/{held['id']}/release", release, replica=1 - n % 2).status == 200
        reset(fleet, held["worker"])
        served.add(held["worker"])
    assert len(served) == 1, "one agent served them all"
    assert metric(fleet, POLLS) - before >= 5, "and has asked again and again"


def _every_replica_in_turn(fleet: KubeFleet) -> None:
    """Each replica is killed in turn. Its agents go to the other replica, which accepts the tokens that the first has signed."""
    for n in range(2):
        asked = fleet.sql("SELECT holdfast.heard() AS now")[0]["now"]
        fleet.kill(n)
        fleet.start(n)
        back(fleet, n)
    unheard = """
    SELECT w.id FROM holdfast.worker w LEFT JOIN holdfast.heartbeat p ON p.worker_id = w.id AND p.beat_heard > $1
    WHERE w.state <> 'gone' AND p.worker_id IS NULL
    """
    eventually(lambda: not fleet.sql(unheard, asked), 60, "every agent has asked the one that was left")


# Helpers


def one_review_each(fleet: KubeFleet, access: Access, agents: int) -> None:
    """Checks that there was one review per agent that ever ran, once the warm workers are there."""
    fleet.warm(3, within=90)
    eventually(lambda: not fleet.workers("spawning"), 60, "no worker is starting")
    assert fleet.sql("SELECT count(*) AS n FROM holdfast.worker")[0]["n"] == agents
    assert reviews(access) == agents, fleet.last_log()


def reviews(access: Access) -> float:
    """Returns how many token reviews the API server has counted."""
    lines = [line for line in access.request("GET", "/metrics").body.splitlines() if 'resource="tokenreviews"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("apiserver_request_total"))


def reset(fleet: KubeFleet, id_: str) -> None:
    eventually(lambda: worker(fleet, id_)["ready"], 30, "it is reset, and parked for its tenant")


def back(fleet: KubeFleet, n: int) -> None:
    eventually(lambda: fleet.api("GET", "/readyz", replica=n).status == 200, 40, f"replica {n} is ready")
