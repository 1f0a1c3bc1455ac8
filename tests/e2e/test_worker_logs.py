"""The last words of workers on a real fleet: of `serve`, of hooks and of agents, also when they were killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from fleet import JOB, SERVE, SESSION, Fleet
from holdfast.local.process import send
from waiting import eventually

Make = Callable[..., Fleet]


def logs(fleet: Fleet, worker: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "logs", worker, *options],
        env={**os.environ, "HOLDFAST_URL": f"http://127.0.0.1:{fleet.ports[0]}", "HOLDFAST_TOKEN": fleet.token},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def explained(fleet: Fleet, kind: str, name: str) -> str:
    return "\n".join(fleet.api("GET", f"/v1/explain/{kind}/{name}").json["sentences"])


def test_an_operator_reads_why_serve_dies_after_its_worker_is_gone(make_fleet: Make) -> None:
    serve = ["sh", "-c", "echo cannot open /data/model.bin; exit 4"]
    fleet = make_fleet(replicas=1, pools={"box": {**SESSION, "worker": {"listen": "port", "serve": serve}}})
    gone = eventually(lambda: fleet.workers("gone"), 30, "a start failed and its worker is gone")[-1]["id"]
    shown = logs(fleet, gone)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert "cannot open /data/model.bin" in lines
    assert "serve exited with 4" in lines[-1], "the agent's own lines are there, too"
    trouble = fleet.api("GET", "/v1/pools/box").json["status"]["trouble"]
    assert trouble == "serve exited with 4: cannot open /data/model.bin"
    assert "  cannot open /data/model.bin" in explained(fleet, "worker", gone)
    assert "  cannot open /data/model.bin" in explained(fleet, "pool", "box")


def test_an_operator_reads_the_hooks_lines_without_the_tenants_secrets(make_fleet: Make) -> None:
    hook = ["sh", "-c", 'echo "mounting with $KEY" >&2; exit 3']
    fleet = make_fleet(replicas=1, pools={"linux": {**JOB, "worker": {"activate": hook}}})
    claim = fleet.claim("linux", command=["true"], secrets={"KEY": "a-long-secret"})
    written = "SELECT worker_id FROM holdfast.worker_log WHERE text LIKE '%mounting%' LIMIT 1"
    [used] = eventually(lambda: fleet.sql(written), 30, "its log is stored")
    fleet.api("POST", f"/v1/claims/{claim['id']}/cancel", {"reason": "seen"})
    shown = logs(fleet, used["worker_id"])
    assert "mounting with ***" in shown.stdout
    stored = fleet.sql("SELECT string_agg(l::text, ' ') AS text FROM holdfast.worker_log l")[0]["text"]
    assert "a-long-secret" not in stored


def test_a_worker_whose_agent_was_killed_keeps_what_was_sent_last(make_fleet: Make) -> None:
    serve = ["sh", "-c", f'echo "the model is loaded"; {SERVE[2]}']
    fleet = make_fleet(replicas=1, pools={"box": {**SESSION, "worker": {"listen": "port", "serve": serve}}})
    [worker] = fleet.warm(1)

    def sent() -> dict[str, Any] | None:
        log = fleet.api("GET", f"/v1/workers/{worker['id']}/log").json
        return log if log["at"] else None

    assert logs(fleet, worker["id"]).stderr == f"worker {worker['id']} has sent no output yet\n"
    assert "the model is loaded" in eventually(sent, 40, "it was sent within ten seconds")["text"]
    send(fleet.agent_of(worker["id"]), signal.SIGKILL)
    eventually(lambda: worker["id"] in {each["id"] for each in fleet.workers("gone")}, 40, "the worker is gone")
    assert "the model is loaded" in logs(fleet, worker["id"]).stdout


def test_a_tenant_may_not_read_a_workers_log_and_an_unknown_worker_is_named(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    [worker] = fleet.warm(1)
    assert fleet.api("GET", f"/v1/workers/{worker['id']}/log", token=fleet.tenant_token("acme")).status == 403
    unknown = logs(fleet, "w-none")
    assert (unknown.returncode, "w-none" in unknown.stderr) == (1, True), unknown.stderr
    assert logs(fleet, worker["id"], "--follow").returncode == 2
