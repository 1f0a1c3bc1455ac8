"""The command line and the SDK against a real fleet."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet import JOB, SESSION, Fleet, eventually
from holdfast.client import LeaseLost, claim

Make = Callable[..., Fleet]


class Commands:
    def __init__(self, fleet: Fleet) -> None:
        self.urls = ",".join(f"http://127.0.0.1:{port}" for port in fleet.ports)
        self.env = {**os.environ, "HOLDFAST_URL": self.urls, "HOLDFAST_TOKEN": fleet.token, "HOME": str(fleet.home)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast", *arguments]
        return subprocess.Popen(command, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err


def test_run_streams_resumes_after_its_replica_is_killed_and_exits_with_the_jobs_code(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    fleet.warm(1)
    script = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.2; done; exit 5"
    running = Commands(fleet).start("run", "--pool", "linux", "--", "sh", "-c", script)
    assert running.stdout is not None
    assert running.stdout.readline() == "line 0\n"
    fleet.kill(0)  # the first server in the list of the client
    rest = running.stdout.read()
    assert rest.splitlines() == [f"line {n}" for n in range(1, 40)], "nothing lost, nothing twice"
    assert running.wait(30) == 5


def test_the_questions_are_answered_by_a_real_server(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB, "notebook": SESSION})
    fleet.warm(2)
    holdfast = Commands(fleet)
    claim_id = holdfast("run", "--pool", "linux", "--detach", "--", "sh", "-c", "echo hi; exit 3")[1].strip()
    fleet.see(claim_id, wait="30s")
    assert holdfast("logs", claim_id)[1] == "hi\n"
    tenants = Path(__file__).parents[2] / "examples" / "tenants.yaml"
    assert holdfast("apply", "-f", str(tenants))[0] == 0
    for noun in ("pools", "workers", "claims", "tenants", "duties", "replicas", "events"):
        code, out, err = holdfast("get", noun)
        assert code == 0, err
        assert out.strip(), noun
        assert isinstance(json.loads(holdfast("get", noun, "-o", "json")[1]), dict)
    code, out, _ = holdfast("explain", "claim", claim_id)
    assert code == 0
    assert "exit code 3" in out
    assert holdfast("explain", "pool", "linux")[0] == 0
    assert holdfast("doctor")[0] == 0
    assert "linux" in holdfast("top", "--once")[1]
    code, _, err = holdfast("run", "--pool", "linus", "--", "true")
    assert (code, "did you mean 'linux'?" in err) == (125, True)
    assert holdfast("freeze", "linux", "--reason", "look")[0] == 0
    assert fleet.api("GET", "/v1/pools/linux").json["frozen"] == "look"
    assert holdfast("thaw", "linux")[0] == 0


def test_a_pool_with_its_own_command_is_used_with_run_and_with_claim(make_fleet: Make) -> None:
    script = 'read line < "$HOLDFAST_PAYLOAD"; echo "payload $line, NAME $NAME"; exit 6'
    nightly = {**JOB, "worker": {"run": ["sh", "-c", script]}}
    waits = {**JOB, "worker": {"run": ["sleep", "1000"]}}
    fleet = make_fleet(replicas=1, pools={"nightly": nightly, "waits": waits, "linux": JOB})
    fleet.warm(3)
    holdfast = Commands(fleet)
    code, out, err = holdfast("run", "--pool", "nightly", "--env", "NAME=acme")
    assert (code, out) == (6, "payload null, NAME acme\n"), err

    code, _, err = holdfast("run", "--pool", "nightly", "--", "true")
    assert "leave it out" in err
    code, _, err = holdfast("run", "--pool", "linux")
    assert "`holdfast run --pool linux -- make test`" in err

    held = holdfast.start("claim", "--pool", "waits", "--hold")
    assert held.stderr is not None
    assert "holding w-" in held.stderr.readline()
    (job,) = fleet.api("GET", "/v1/claims?pool=waits").json["items"]
    fleet.api("POST", f"/v1/claims/{job['id']}/cancel", {"reason": "enough"})
    _, err = held.communicate(timeout=300)  # it ends by itself
    assert (held.returncode, "ended as cancelled: enough" in err) == (1, True)


async def test_the_sdk_holds_a_session_and_notices_when_it_is_lost(make_fleet: Make) -> None:
    fleet = await asyncio.to_thread(make_fleet, replicas=2, pools={"notebook": {**SESSION, "claim": {"lease": "3s"}}})
    url = ",".join(f"http://127.0.0.1:{port}" for port in fleet.ports)

    async def hold_and_lose() -> None:
        async with claim("notebook", tenant="acme", url=url, token=fleet.token):
            held = fleet.api("GET", "/v1/claims?state=active").json["items"][0]["id"]
            fleet.api("POST", f"/v1/claims/{held}/release", {"force": True, "reason": "test"})
            await asyncio.Event().wait()  # until the SDK cancels this task

    async with claim("notebook", tenant="acme", url=url, token=fleet.token) as worker:
        first = worker.fence
        await asyncio.sleep(5)  # longer than the lease, so that the session depends on its renewals
        assert fleet.api("GET", "/v1/claims?state=active").json["items"][0]["fence"] == first
    eventually(lambda: fleet.api("GET", "/v1/claims?state=active").json["items"] == [], 10, "released at the end")
    with pytest.raises(LeaseLost):
        await hold_and_lose()


def test_the_example_of_the_sdk_runs(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"notebook": SESSION})
    example = Path(__file__).parents[2] / "examples" / "sdk_session.py"
    env = Commands(fleet).env
    done = subprocess.run([sys.executable, str(example)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
