"""Other users of the namespace: another installation, pods with our labels, tokens of other pods. None is touched or trusted."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from forged_tokens import content, signed_again
from kube_fleet import KubeFleet, Made, job
from kube_stage import KubeStage

from holdfast.kubernetes import names
from waiting import eventually


def test_two_installations_in_one_namespace_never_touch_each_other(fleet_of: Made) -> None:
    one = fleet_of(pools={"linux": job(warm=2)}, install="one", replicas=2)
    two = fleet_of(pools={"linux": job(warm=1)}, install="two", replicas=2)
    one.warm(2, within=90)
    two.warm(1, within=90)
    held = one.claim("linux", command=["sh", "-c", "sleep 5; exit 4"], wait="30s")
    # The neighbour does everything that ends workers: it drains a pool and rolls one out.
    changed = job(warm=1)
    changed["pod"]["spec"]["containers"][0]["env"] = [{"name": "NEW", "value": "1"}]
    assert two.api("PUT", "/v1/pools/linux", changed).status == 200
    assert two.api("DELETE", "/v1/pools/linux").status == 200
    eventually(lambda: not two.workers(), 90, "the neighbour's workers go")
    assert one.see(held["id"], wait="60s")["exit_code"] == 4
    one.warm(2, within=60)
    ours = {pod["metadata"]["name"] for pod in one.pods()}
    assert {worker["id"] for worker in one.workers()} <= ours
    checks = {check["name"]: check["ok"] for check in one.api("GET", "/v1/doctor").json["checks"]}
    assert checks["every pod has a row"]


def test_a_foreign_pod_with_our_labels_but_no_installation_is_left_alone(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"linux": job(warm=1)})
    fleet.warm(1, within=60)
    labels = {
        names.POOL: "linux",
        names.WORKER: "w-linux-foreign",
        names.BUSY: "true",
        names.OWNER: "acme",
        names.CLAIM: "c-none",
    }
    container = {"name": "work", "image": "work:test", "command": ["sleep", "1000"]}
    body = {
        "metadata": {"name": "w-linux-foreign", "labels": labels},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    fleet.access.ask("POST", fleet.pods_path, body)
    assert fleet.api("DELETE", "/v1/pools/linux").status == 200
    eventually(lambda: not fleet.workers() and not fleet.pods(), 90, "everything of ours is gone")
    found = fleet.pod("w-linux-foreign")
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
    assert found["metadata"]["labels"] == labels, "it was not changed"


def register(fleet: KubeFleet, worker: str, uid: str, token: str) -> int:
    """Returns the status of a registration. Like an agent, it tries again while the tokens of a pod come too fast for reviews."""
    return eventually(lambda: (status := _registered(fleet, worker, uid, token)) != 503 and status, 30, "its token is reviewed")


def _registered(fleet: KubeFleet, worker: str, uid: str, token: str) -> int:
    body = json.dumps({"worker": worker, "uid": uid, "version": "0", "protocol": 1}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{fleet.ports[0]}/v1/worker/register"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_the_workers_own_pod_can_register_as_it(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"linux": job(warm=2)})
    first, second = fleet.warm(2, within=90)[:2]
    stage = KubeStage(fleet.access, fleet.namespace, fleet.kubelet)
    pods: dict[str, Any] = {pod["metadata"]["name"]: pod for pod in fleet.pods()}

    def token(worker: dict[str, Any], audience: str = "holdfast") -> str:
        pod = pods[worker["id"]]
        return stage.bound_token(pod["spec"]["serviceAccountName"], worker["id"], pod["metadata"]["uid"], audience)

    mine, uid = token(first), pods[first["id"]]["metadata"]["uid"]
    assert register(fleet, first["id"], uid, mine) == 200
    assert register(fleet, second["id"], pods[second["id"]]["metadata"]["uid"], mine) == 401, "another worker's name"
    assert register(fleet, first["id"], "another", mine) == 401, "another pod's UID"
    assert register(fleet, first["id"], uid, token(second)) == 401, "another pod's token"
    assert register(fleet, first["id"], uid, token(first, audience="vault")) == 401, "meant for another audience"
    assert register(fleet, first["id"], uid, mine[:-4] + "AAAA") == 401, "forged"
    assert register(fleet, first["id"], uid, fleet.access.token) == 401, "an admin of the cluster is no worker"
    _nor_with_a_token_that_has_expired(fleet, first["id"], uid, mine)


def _nor_with_a_token_that_has_expired(fleet: KubeFleet, worker: str, uid: str, mine: str) -> None:
    """The API server signed both tokens, and only the times differ."""
    hour, then = 3600, content(mine)
    times = {key: then[key] - hour for key in ("iat", "nbf", "exp")}
    assert times["exp"] < time.time() - 60, "more than what clocks may differ by"
    assert register(fleet, worker, uid, signed_again(fleet.access, mine, **times)) == 401, "expired"
    later = {"exp": then["exp"] + hour}
    assert register(fleet, worker, uid, signed_again(fleet.access, mine, **later)) == 200, "else as good as the first"
