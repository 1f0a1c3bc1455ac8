"""A worker is the first container of its pod: its end counts, whatever else runs there. It gets its claim and no token."""

import json
import os
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from fleet_probes import quiet
from kube_fleet import KubeFleet, Made, job
from pool_specs import SERVE, get, sessions

from cluster_pods import STAY, state
from holdfast.kubernetes import names
from waiting import eventually

BESIDE = {"name": "beside", "image": "db:test", "command": ["sh", "-c", STAY]}
TOKENS = (
    # finds every file with a token of Kubernetes or of Holdfast
    "grep -rlE 'eyJ[A-Za-z0-9_-]{8}' /run /proc/self/environ; echo looked"
)


def with_beside(pool: dict[str, Any], **change: Any) -> dict[str, Any]:
    pool = deepcopy(pool)
    pool["pod"]["spec"]["containers"].append({**BESIDE, **change})
    return pool


def pod_of(fleet: KubeFleet, worker: str) -> dict[str, Any]:
    pod = fleet.pod(worker)
    assert pod is not None
    return pod


# Ends


def test_a_job_ends_with_its_container_though_another_one_lives_on(fleet_of: Made, tmp_path: Path) -> None:
    fleet = fleet_of(pools={"linux": with_beside(job())})
    fleet.warm(1, within=90)
    end = tmp_path / "end"
    tmp_path.chmod(0o755)
    waits = f"echo said; until [ -e {end} ]; do sleep 0.1; done; exit 5"
    claim = fleet.claim("linux", command=["sh", "-c", waits], wait="30s")
    eventually(lambda: "running" in state(pod_of(fleet, claim["worker"]), "beside"), 60, "the other one runs")
    end.touch()
    ended = fleet.see(claim["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], ended["attempts"]) == ("failed", 5, 1), fleet.last_log()
    assert fleet.api("GET", f"/v1/claims/{claim['id']}/output").raw == b"said\n"
    eventually(lambda: fleet.pod(claim["worker"]) is None, 60, "its pod goes, and with it what ran beside")
    fleet.warm(1, within=90)
    fleet.check_promises()
    quiet(fleet)


def test_a_session_ends_with_its_container_though_its_agent_would_serve_on(fleet_of: Made, tmp_path: Path) -> None:
    """The agent waits for its holder after SIGTERM, so it could run for an hour longer than the container that it serves."""
    end = tmp_path / "end"
    tmp_path.chmod(0o755)
    dies = f"import os, threading, time\ndef watch():\n  while not os.path.exists('{end}'): time.sleep(0.05)\n  os._exit(4)\n"
    serves = f"{dies}threading.Thread(target=watch, daemon=True).start()\n{SERVE}"
    pool = sessions(drain={"grace": "1h"})
    pool["pod"]["spec"]["containers"][0]["command"] = ["python", "-c", serves]
    fleet = fleet_of(pools={"notebook": pool})
    fleet.warm(1, within=90)
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    assert get(held["endpoint"], held["credential"]) == 200
    end.touch()
    ended = fleet.see(held["id"], wait="30s")
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 4), fleet.last_log()
    over = lambda: (pod := fleet.pod(held["worker"])) is None or pod["status"]["phase"] == "Failed"  # noqa: E731
    eventually(over, 120, "its agent is directed to exit and exits, or is ended")


# Images


@pytest.mark.parametrize("pool", [job(), sessions()], ids=["job", "session"])
def test_an_image_beside_the_workers_that_cannot_be_pulled_keeps_it_from_being_warm(fleet_of: Made, pool: dict[str, Any]) -> None:
    fleet = fleet_of(pools={"beside": with_beside(pool, image="db:missing")})

    def printed() -> bool:
        return "db:missing" in (fleet.api("GET", "/v1/pools/beside").json["status"]["trouble"] or "")

    eventually(printed, 60, "the pool shows what is missing")
    assert fleet.workers("warm") == []


# Tokens


def test_a_jobs_container_sees_no_token_and_no_file_with_its_secrets(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"linux": with_beside(job(), command=["sh", "-c", f"{TOKENS}; {STAY}"])})
    uid = fleet.warm(1, within=90)[0]["uid"]
    assert token_of(fleet, uid).startswith("eyJ"), "its agent has one, in the same pod"
    look = f'mount; echo "it has ${{#KEY}} characters"; grep -rlF "$KEY" /run; {TOKENS}'
    claim = fleet.claim("linux", command=["sh", "-c", look], secrets={"KEY": "s3cret-of-claim"}, wait="30s")
    assert fleet.see(claim["id"], wait="60s")["outcome"] == "completed"
    printed = fleet.api("GET", f"/v1/claims/{claim['id']}/output").raw.decode().splitlines()
    mounts = [line for line in printed if " on /run/" in line]
    assert [line.split()[2] for line in mounts] == [names.SHARED_PATH], mounts
    assert printed[-1] == "looked"
    assert "it has 15 characters" in printed
    assert not [line for line in printed if line.startswith(("/run", "/proc"))], "neither a token nor a secret"
    assert fleet.kubelet.log_of(uid, "beside") == "looked\n"


def test_a_sessions_container_sees_no_token(fleet_of: Made) -> None:
    pool = sessions()
    container = pool["pod"]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", f'mount | grep " on /run/"; {TOKENS}; exec python -c "$0"', SERVE]
    fleet = fleet_of(pools={"notebook": pool})
    uid = fleet.warm(1, within=90)[0]["uid"]
    assert token_of(fleet, uid).startswith("eyJ")
    assert fleet.kubelet.log_of(uid, "work").splitlines()[0] == "looked", "nothing of ours is mounted, and nothing holds a token"


def token_of(fleet: KubeFleet, uid: str) -> str:
    return (fleet.kubelet.volume(uid, names.TOKEN_VOLUME) / "token").read_text()


# Assignments


def test_an_image_without_a_shell_finds_its_claim_in_a_file(fleet_of: Made, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    tmp_path.chmod(0o755)
    script.write_text(
        "import json, os, sys\n"
        "assert not os.path.exists('/bin/sh')\n"
        "assignment = json.load(open(os.environ['HOLDFAST_ASSIGNMENT']))\n"
        "print(json.dumps(assignment), flush=True)\n"
        "sys.exit(assignment['payload']['code'])\n"
    )
    pool = job([sys.executable, "-I", str(script)])
    programs = os.path.realpath("/bin")
    pool["pod"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "nothing", "mountPath": programs}]
    pool["pod"]["spec"]["volumes"] = [{"name": "nothing", "emptyDir": {}}]
    fleet = fleet_of(pools={"static": pool})
    fleet.warm(1, within=90)
    given = {"command": ["a", "b c"], "env": {"GREETING": "hello"}, "secrets": {"KEY": "s3cret"}, "payload": {"code": 6}}
    claim = fleet.claim("static", tenant="acme", **given, wait="30s")
    ended = fleet.see(claim["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 6), fleet.last_log()
    reported = json.loads(fleet.api("GET", f"/v1/claims/{claim['id']}/output").raw)
    assert reported == {**given, "claim": claim["id"], "tenant": "acme", "fence": claim["fence"]}
