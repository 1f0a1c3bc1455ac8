"""`wait` returns when the claim is active or has ended, with an exit code for scripts."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast


def waiting_claim(cli: Cli, server: FakeHoldfast) -> str:
    server.serves = False
    return cli("run", "--pool", "linux", "--detach", "--", "true").out.strip()


@pytest.mark.parametrize(
    ("end", "code", "printed"),
    [
        ({"outcome": "completed", "exit_code": 0}, 0, "ended as completed with exit code 0"),
        ({"outcome": "failed", "exit_code": 7}, 7, "ended as failed with exit code 7"),
        ({"outcome": "released"}, 0, "ended as released"),
        ({"outcome": "refused", "reason": "no worker in time"}, 124, "ended as refused: no worker in time"),
        ({"outcome": "lost", "reason": "its worker died"}, 125, "ended as lost: its worker died"),
    ],
)
def test_waiting_for_the_end_exits_as_run_would(
    cli: Cli, server: FakeHoldfast, end: dict[str, Any], code: int, printed: str
) -> None:
    claim = waiting_claim(cli, server)
    server.change(claim, **{"reason": "", "state": "ended", **end})
    result = cli("wait", claim)
    assert (result.code, result.out) == (code, f"claim {claim} {printed}\n")


def test_it_waits_until_the_claim_is_active(cli: Cli, server: FakeHoldfast) -> None:
    claim = waiting_claim(cli, server)
    environment = {**os.environ, "HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": TOKEN}
    command = [sys.executable, "-m", "holdfast", "wait", claim, "--for", "active", "--timeout", "10m", "-o", "json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        server.until(lambda fake: [path for path in fake.asked("GET", claim) if "until=active" in path])
        assert process.poll() is None
        server.change(claim, **server.active(1, False))
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["state"]) == (0, "active")


def test_a_claim_that_was_active_and_ended_has_been_active(cli: Cli, server: FakeHoldfast) -> None:
    claim = waiting_claim(cli, server)
    ended = {"state": "ended", "outcome": "failed", "exit_code": 3}
    server.change(claim, **ended, active_at="2026-01-01T00:00:00+00:00")
    assert cli("wait", claim, "--for", "active").code == 0
    server.change(claim, state="ended", outcome="refused", exit_code=None, active_at=None)
    assert cli("wait", claim, "--for", "active").code == 124


def test_when_the_time_is_over_the_code_is_124_and_the_reason_is_shown(cli: Cli, server: FakeHoldfast) -> None:
    claim = waiting_claim(cli, server)
    result = cli("wait", claim, "--timeout", "200ms")
    assert result.code == 124
    assert f"claim {claim} is still waiting after 200ms: 0 of 8 workers free; 8 held" in result.err


def test_an_unknown_claim_and_a_wrong_duration_are_refused(cli: Cli, server: FakeHoldfast) -> None:
    assert cli("wait", "c-none").code == 125
    result = cli("wait", "c-none", "--timeout", "ten minutes")
    assert (result.code, "--timeout: 'ten minutes' is not a duration such as" in result.err) == (125, True)


def test_ctrl_c_leaves_the_claim_alone(cli: Cli, server: FakeHoldfast) -> None:
    claim = waiting_claim(cli, server)
    environment = {**os.environ, "HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": TOKEN}
    command = [sys.executable, "-m", "holdfast", "wait", claim]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        server.until(lambda fake: [path for path in fake.asked("GET", claim) if "until=ended" in path])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert server.claims[claim]["state"] == "waiting"
