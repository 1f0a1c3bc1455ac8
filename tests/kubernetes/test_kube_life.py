"""Normal operation on a real API server: a warm pod, a claim, its command in an unmodified image, its result, its end."""

import urllib.error
import urllib.request

from kube_fleet import Made, job

from waiting import eventually

SERVE = "import http.server, os; http.server.test(http.server.SimpleHTTPRequestHandler, bind=os.environ['IP'], port=8080)"
SESSION = {
    "mode": "session",
    "warm": 1,
    "max": 4,
    "claim": {"lease": "30s"},
    "pod": {
        "spec": {
            "containers": [
                {
                    "name": "work",
                    "image": "notebook:test",
                    "command": ["python", "-c", SERVE],
                    "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                }
            ]
        }
    },
}


def get(endpoint: str, credential: str | None) -> int:
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_session_is_served_through_its_sidecar_and_parked_for_its_tenant(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"notebook": SESSION})
    fleet.warm(1, within=60)
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    assert held["state"] == "active", fleet.last_log()
    assert get(held["endpoint"], held["credential"]) == 200
    assert get(held["endpoint"], "hfc_wrong") == 401
    assert get(held["endpoint"], None) == 401
    assert fleet.api("POST", f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}).status == 200
    eventually(lambda: get(held["endpoint"], held["credential"]) == 401, 10, "its credential is dead")
    again = fleet.claim("notebook", tenant="acme", wait="30s")
    assert again["worker"] == held["worker"], "its own tenant gets it back"
    assert get(again["endpoint"], again["credential"]) == 200
    assert get(again["endpoint"], held["credential"]) == 401
    other = fleet.claim("notebook", tenant="globex", wait="60s")
    assert other["worker"] != held["worker"]
    assert get(other["endpoint"], again["credential"]) == 401, "another's worker"


def test_a_claims_command_runs_in_an_unmodified_image_and_its_status_is_the_result(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"linux": job(warm=2)})
    fleet.warm(2, within=60)
    asked = fleet.claim("linux", command=["sh", "-c", "echo $GREETING from $HOLDFAST_CLAIM; exit 3"], env={"GREETING": "hello"})
    ended = fleet.see(asked["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], ended["protected"]) == ("failed", 3, True), fleet.last_log()
    output = fleet.api("GET", f"/v1/claims/{asked['id']}/output").raw
    assert output == f"hello from {asked['id']}\n".encode()
    fleet.warm(2, within=60)
    eventually(lambda: ended["worker"] not in [each["id"] for each in fleet.workers()], 30, "its slot is free")
