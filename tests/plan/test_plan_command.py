"""The command `plan`: what it refuses, what it writes, and traces from a running fleet."""

import asyncio
import contextlib
import io
import json
import time
from pathlib import Path

import pytest
from cli_results import Cli

from holdfast.client import Client
from holdfast.plan import many
from holdfast.plan.export import Exported, export
from holdfast.plan.trace import read, write
from holdfast.postgres.embedded import EmbeddedPostgres
from served_api import Stage

POOLS = """
apiVersion: holdfast.dev/v1alpha1
kind: WorkerPool
metadata: {name: linux}
spec: {mode: job, warm: 3, max: 8, startTimeout: 1m}
"""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--trace", "a.csv"), "name the settings to try with --warm"),
        (("--warm", "2..4"), "name the source of the trace"),
        (("--warm", "2", "--trace", "a.csv", "--synthetic", "day"), "name the source of the trace"),
        (("--warm", "4..2", "--trace", "a.csv"), "--warm: '4..2' ends before it begins"),
        (("--warm", "2", "--trace", "a.csv", "--target", "p90=1s"), "--target: 'p90=1s' is not a target such as p95=1s"),
        (("--warm", "2", "--trace", "a.csv", "--start-time", "soon"), "--start-time: 'soon' is not a duration"),
        (("--warm", "2", "--synthetic", "day", "--rate", "many"), "--rate: 'many' is not a rate such as 200/h"),
        (("--warm", "2", "--trace", "none.csv"), "none.csv: No such file or directory"),
        (("--warm", "2", "--trace", "bad.csv"), "bad.csv:2: seconds: 'x' is not a number of seconds"),
        (("--warm", "2", "--trace", "two.csv"), "which pool? Choose one with --pool: linux, macos"),
        (("--warm", "2", "--trace", "two.csv", "--pool", "bsd"), "the trace has no claims of pool 'bsd'; it has: linux, macos"),
        (
            ("--warm", "2", "--trace", "two.csv", "-f", "pools.yaml", "--pool", "macos"),
            "pools.yaml: no pool 'macos'; it has: linux",
        ),
        (("--warm", "2..9", "--trace", "a.csv", "-f", "pools.yaml"), "--warm: 9 is more than the pool's max (8)"),
        (("--warm", "2", "--trace", "a.csv", "-f", "pools.yaml", "--start-time", "2m"), "given up after its startTimeout, 1m"),
        (("--warm", "2", "--trace", "a.csv", "--busiest", "0s"), "--busiest must be longer than 0s"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    (tmp_path / "a.csv").write_text("at,seconds\n0,5\n")
    (tmp_path / "bad.csv").write_text("at,seconds\n0,x\n")
    (tmp_path / "two.csv").write_text("at,seconds,pool\n0,5,linux\n1,5,macos\n")
    (tmp_path / "pools.yaml").write_text(POOLS)
    result = cli("plan", *arguments)
    assert result.code in (1, 2)
    assert why in result.err
    assert result.err.count("\n") == 1
    assert not result.out


def test_a_synthetic_trace_is_written_and_can_be_read(cli: Cli, tmp_path: Path) -> None:
    result = cli("plan", "--synthetic", "day", "--rate", "20/h", "--duration", "90s", "--export", "day.csv")
    assert (result.code, result.out) == (0, "")
    with (tmp_path / "day.csv").open(newline="") as file:
        found = read(file, "day.csv")
    assert f"{len(found.arrivals)} claims written to day.csv" in result.err
    assert cli("plan", "--trace", "day.csv", "--export", "-").out == (tmp_path / "day.csv").read_text()


def test_a_running_fleets_claims_become_a_trace(
    stage: Stage, cli: Cli, simulated: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the real API: ended, held and refused claims are written, read back, and planned with the pool's own spec."""
    ended = stage.claim("acme")
    held = stage.claim("rival")
    for _ in range(4):
        stage.claim("acme")
    never = stage.claim("acme")  # no worker is free any more
    assert never["state"] == "waiting"
    time.sleep(0.2)
    assert stage.ask("POST", f"/v1/claims/{ended['id']}/release", {}, token="acme").status == 200
    assert stage.ask("POST", f"/v1/claims/{never['id']}/cancel", {}, token="acme").status == 200

    async def fetch() -> Exported:
        async with Client(stage.url, "operator") as client:
            return await export(client, pool="direct", since=time.time() - 60, now=time.time())

    got = asyncio.run(fetch())
    assert got.trace is not None
    assert (got.never_held, got.still_held, len(got.trace.arrivals)) == (1, 5, 6)
    assert got.trace.pools == ["direct"]
    assert got.trace.tenants == {"acme": 0, "rival": 0}
    assert all(0.1 < each.seconds < 30 for each in got.trace.arrivals)
    file = io.StringIO()
    write(got.trace, file)
    file.seek(0)
    assert read(file, "again") == got.trace
    assert held["tenant"] == "rival"

    result = cli("--url", stage.url, "--token", "operator", "plan", "--fleet", "--pool", "direct", "--export", "-")
    assert result.code == 0, result.err
    assert len(result.out.splitlines()) == 7
    assert "5 claims are still held" in result.err
    monkeypatch.setattr(many, "server", lambda: contextlib.nullcontext(simulated))
    plan = ("--url", stage.url, "--token", "admin", "plan", "--fleet", "--pool", "direct", "--warm", "1", "-o", "json")
    unfit = cli(*plan)
    assert unfit.code == 1
    assert "warm 1: a worker of this pool cannot start: " in unfit.err
    runs = {"mode": "job", "max": 50, "worker": {"agent": False, "run": ["sleep", "1"]}, "protection": {"mode": "off"}}
    assert stage.ask("PUT", "/v1/pools/direct", runs).status == 200
    planned = cli(*plan)
    assert planned.code == 0, planned.err
    found = json.loads(planned.out)
    # the max of the pool's own spec
    assert (found["trace"]["claims"], found["pool"]["max"], found["settings"][0]["claims"]) == (6, 50, 6)
    none = cli("--url", stage.url, "--token", "operator", "plan", "--pool", "agents", "--export", "-")
    assert (none.code, "no claim of pool 'agents' was held in the last 24h" in none.err) == (1, True)
