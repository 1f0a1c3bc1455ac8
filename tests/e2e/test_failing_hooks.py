"""What a person sees when the `activate` hook fails, on a real fleet: with `run`, on the pool, in `doctor` and in the metrics."""

import os
import subprocess
import sys
from collections.abc import Callable

from fleet import JOB, Fleet
from waiting import eventually

Make = Callable[..., Fleet]

# The hook fails for a payload that contains "bad", and for every payload while the file exists.
HOOK = 'echo preparing; if test -e {broken} || grep -q bad "$HOLDFAST_PAYLOAD"; then echo "no such volume: $KEY" >&2; exit 3; fi'


def pool(fleet: Fleet, **spec: object) -> None:
    hook = HOOK.format(broken=fleet.home / "broken")
    answer = fleet.api("PUT", "/v1/pools/linux", {**JOB, **spec, "worker": {"activate": ["sh", "-c", hook]}})
    assert answer.status == 201, answer.raw


def trouble(fleet: Fleet) -> str | None:
    shown: str | None = fleet.api("GET", "/v1/pools/linux").json["status"]["trouble"]
    return shown


def workers_used(fleet: Fleet) -> int:
    return int(fleet.sql("SELECT count(*) AS n FROM holdfast.worker")[0]["n"])


def test_a_user_runs_a_job_whose_hook_fails_and_gets_its_last_lines_after_five_workers(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1)
    pool(fleet)
    fleet.warm(1)
    (fleet.home / "broken").touch()
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "--pool", "linux", "--secret", "KEY=a-long-secret", "--", "true"],
        env={**os.environ, "HOLDFAST_URL": f"http://127.0.0.1:{fleet.ports[0]}", "HOLDFAST_TOKEN": fleet.token},
        capture_output=True,
        text=True,
        timeout=200,
    )
    last = "activate exited with 3: preparing / no such volume: ***"
    assert ran.returncode == 124, ran.stderr
    assert f"ended as refused: activation failed 5 times: {last}" in ran.stderr
    assert "activation failed 1 of 5 times; the next try is in " in ran.stderr
    # The hook's own output is the job's output, which belongs to its holder. What Holdfast says does not contain the secret.
    assert "a-long-secret" not in "".join(line for line in ran.stderr.splitlines() if "activat" in line)
    assert trouble(fleet) == f"activation fails: {last}"
    assert workers_used(fleet) <= 7, "5 workers for the claim, and the warm ones that replace them"
    metrics = fleet.api("GET", "/metrics").raw.decode()
    assert 'holdfast_activations_failed_total{pool="linux"} 5.0' in metrics
    assert 'holdfast_claim_ends_total{how="activation"} 1.0' in metrics
    explained = " ".join(fleet.api("GET", "/v1/explain/pool/linux").json["sentences"])
    assert f"Activation failed for 1 claim since the last success: {last}." in explained
    (fleet.home / "broken").unlink()
    assert fleet.see(fleet.claim("linux", command=["true"])["id"], wait="30s")["outcome"] == "completed"
    assert trouble(fleet) is None


def test_jobs_of_other_users_run_while_the_payload_of_one_makes_the_hook_fail(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2)
    pool(fleet, warm=2)
    bad = fleet.claim("linux", payload={"kind": "bad"}, command=["true"], wait="0s")
    eventually(lambda: "activation failed" in fleet.see(bad["id"])["reason"], 30, "the first failure shows")
    for _ in range(3):
        assert fleet.see(fleet.claim("linux", command=["true"])["id"], wait="20s")["outcome"] == "completed"
    waits = fleet.see(bad["id"])
    assert (waits["state"], waits["attempts"] < 5) in {("waiting", True), ("assigned", True)}, waits
    fleet.api("POST", f"/v1/claims/{bad['id']}/cancel", {"reason": "seen"})


def test_an_operator_sees_that_the_hook_fails_for_all_claims_and_they_run_when_it_works_again(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2)
    pool(fleet, warm=4, max=8)
    fleet.warm(4)
    (fleet.home / "broken").touch()
    claims = [fleet.claim("linux", command=["true"], wait="0s")["id"] for _ in range(6)]
    checks = eventually(lambda: [c for c in fleet.api("GET", "/v1/doctor").json["checks"] if not c["ok"]], 30, "doctor finds it")
    assert "no such volume" in checks[0]["detail"]
    sentences = eventually(
        lambda: (
            "tried one at a time" in (found := " ".join(fleet.api("GET", "/v1/explain/pool/linux").json["sentences"])) and found
        ),
        30,
        "three claims have failed",
    )
    assert "The next claim is tried in" in sentences
    theirs = fleet.tenant_token("other")
    [listed] = fleet.api("GET", "/v1/pools", token=theirs).json["items"]
    shown = fleet.api("GET", "/v1/pools/linux", token=theirs).json
    assert not any("trouble" in each["status"] for each in (listed, shown)), "a tenant does not see another tenant's lines"
    (fleet.home / "broken").unlink()
    for claim in claims:
        assert fleet.see(claim, wait="60s")["outcome"] == "completed"
    assert workers_used(fleet) < 40
