"""A person who waits for a worker reads why: which activation failed, what its hook printed, and when it is tried again."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast

from holdfast.cli.waiting import WhyItWaits
from holdfast.client.answers import Claim

COMMANDS = {
    "claim": ["claim", "--pool", "notebook", "--wait", "60s"],
    "claim --hold": ["claim", "--pool", "notebook", "--hold"],
    "run": ["run", "--pool", "linux", "--", "true"],
}


def failed(times: int, again: int) -> str:
    return f"activation failed {times} of 5 times; the next try is in {again} s: activate exited with 3: cannot mount /data"


@pytest.mark.parametrize("command", COMMANDS)
def test_who_waits_for_a_worker_reads_each_failed_activation(server: FakeHoldfast, tmp_path: Path, command: str) -> None:
    server.serves = False
    env = {**os.environ, "HOLDFAST_URL": ",".join(server.urls), "HOLDFAST_TOKEN": TOKEN, "XDG_CONFIG_HOME": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *COMMANDS[command]], stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    limit = threading.Timer(60, process.kill)  # without a line, the test fails instead of waiting forever
    limit.start()
    try:
        assert process.stderr.readline() == "claim c-1 is waiting: 0 of 8 workers free; 8 held\n"
        server.change("c-1", attempts=1, reason=failed(1, 2))
        assert process.stderr.readline() == f"claim c-1 is waiting: {failed(1, 2)}\n"
        server.change("c-1", state="ended", outcome="refused", reason="activation failed 5 times: cannot mount /data")
        assert "activation failed 5 times: cannot mount /data" in process.stderr.readline()
        assert process.wait(60) == 124
    finally:
        limit.cancel()
        process.kill()
        process.wait()


def test_a_countdown_alone_is_not_news_and_a_busy_pool_is_not_reported_every_other_second(
    capfd: pytest.CaptureFixture[str],
) -> None:
    say = WhyItWaits()
    steps = [
        ("waiting", 0, "0 of 8 free"),
        ("waiting", 0, "1 of 8 free"),  # within 10 s
        ("waiting", 1, failed(1, 2)),
        ("waiting", 1, failed(1, 1)),
        ("assigned", 2, "activation failed 1 of 5 times, and is tried on another worker now"),
        ("waiting", 2, failed(2, 4)),
        ("active", 3, ""),
    ]
    for state, attempts, reason in steps:
        say(Claim(id="c-1", state=state, attempts=attempts, reason=reason))
    shown = [steps[0], steps[2], steps[4], steps[5]]
    assert capfd.readouterr().err.splitlines() == [f"claim c-1 is {state}: {reason}" for state, _, reason in shown]


def test_a_claim_that_is_not_to_wait_sends_one_request_and_prints_no_reason(cli: Cli, server: FakeHoldfast) -> None:
    server.serves = False
    result = cli("claim", "--pool", "linux", "--wait", "0s")
    assert result.code == 124
    assert "is waiting:" not in result.err
    assert server.bodies["c-1"]["pool"] == "linux"
