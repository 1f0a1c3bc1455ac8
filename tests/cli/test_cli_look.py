"""The commands that show things print tables for people, JSON for programs, and one line for an error."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast, problem

from holdfast.cli.describe import ways_in

NOUNS = ("pools", "workers", "claims", "tenants", "duties", "replicas", "events")


@pytest.fixture
def busy(server: FakeHoldfast, cli: Cli) -> FakeHoldfast:
    server.pools["linux"] = {
        "name": "linux",
        "state": "live",
        "frozen": None,
        "spec": {"mode": "job", "max": 8},
        "status": {"warm": 3, "held": 5, "parked": 0, "spawning": 0, "retiring": 0, "waiting": 2, "oldest_wait": 61.0},
    }
    cli("run", "--pool", "linux", "--detach", "--", "true")
    server.happen("claim.active", claim="c-1", worker="w-1", reason="acknowledged")
    return server


@pytest.mark.parametrize("noun", NOUNS)
def test_json_is_the_servers_own(cli: Cli, busy: FakeHoldfast, noun: str) -> None:
    result = cli("get", noun, "-o", "json")
    assert result.code == 0
    assert set(json.loads(result.out)) == {"items", "next"} | ({"previous"} if noun == "events" else set())


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "claims", "c-1"),
        ("explain", "claim", "c-1"),
        ("doctor",),
        ("claim", "--pool", "linux"),
        ("cancel", "c-1"),
    ],
)
def test_json_everywhere(cli: Cli, busy: FakeHoldfast, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments, "-o", "json")
    assert (result.code, result.err) == (0, "")
    json.loads(result.out)


def test_tables_have_headers_and_whole_ids(cli: Cli, busy: FakeHoldfast) -> None:
    lines = cli("get", "claims").out.splitlines()
    assert lines[0].split()[:4] == ["ID", "POOL", "TENANT", "STATE"]
    assert lines[1].split()[:4] == ["c-1", "linux", "default", "active"]
    assert "61" not in cli("get", "pools").out
    assert cli("explain", "claim", "c-1").out == "claim c-1 is well.\n"


def test_replicas_that_are_not_live_show_since_when_and_come_last(cli: Cli, server: FakeHoldfast) -> None:
    now = datetime.now(UTC)

    def seen(seconds: int) -> str:
        return (now - timedelta(seconds=seconds)).isoformat()

    server.replicas = [
        {"id": "r-old", "state": "stopped", "url": "http://a:1", "pid": 1, "started_at": seen(900), "seen_at": seen(300)},
        {"id": "r-dead", "state": "silent", "url": "http://a:2", "pid": 2, "started_at": seen(900), "seen_at": seen(120)},
        {"id": "r-new", "state": "live", "url": "http://a:1", "pid": 3, "started_at": seen(60), "seen_at": seen(0)},
    ]
    lines = cli("get", "replicas").out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "r-new", "r-old", "r-dead"]
    new, old, dead = (" ".join(line.split()[1:5]) for line in lines[1:])
    # Some seconds may pass on a busy machine between the start of this test and its last line.
    assert new.startswith("live http://a:1 3 ")
    assert old == "stopped 5 min ago"
    assert dead == "silent for 2 min"
    assert re.search(r" [6-9]\d s$", lines[1])


def test_top_shows_one_frame(cli: Cli, busy: FakeHoldfast) -> None:
    shown = cli("top", "--once").out
    row = next(line for line in shown.splitlines() if line.startswith("linux"))
    assert row.split() == ["linux", "live", "3", "5", "0", "0", "0", "2", "1m1s"]
    assert "match 500ms" in shown
    assert "acknowledged" in shown


def test_top_as_json_is_one_frame_and_marks_what_a_token_may_not_see(cli: Cli, busy: FakeHoldfast) -> None:
    frame = json.loads(cli("top", "--once", "-o", "json").out)
    assert frame["pools"][0]["status"]["held"] == 5
    assert [duty["duty"] for duty in frame["duties"]] == ["match"]
    assert [event["reason"] for event in frame["events"]] == ["acknowledged"]
    assert frame["waiting"] == []

    async def forbidden(_: object) -> object:
        return problem(403, "forbidden", "not for you")

    busy.fail_next("GET", "/duties", forbidden, forbidden)  # type: ignore[arg-type]
    assert json.loads(cli("top", "--once", "-o", "json").out)["duties"] is None
    assert "duties  not shown to this token" in cli("top", "--once").out
    result = cli("top", "-o", "json")
    assert (result.code, result.out) == (2, "")
    assert "--once" in result.err


def test_a_claim_is_printed_for_people_with_the_line_that_reaches_its_worker(cli: Cli, server: FakeHoldfast) -> None:
    shown = dict(line.split(":", 1) for line in cli("claim", "--pool", "notebook").out.splitlines())
    claim = server.claims["c-1"]
    assert shown["protected"].strip() == "yes"
    assert re.fullmatch(r" +\d\d:\d\d:\d\d \(\d s ago\)", shown["created_at"]), shown
    assert re.fullmatch(r" +(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \(in \d+ s\)", shown["lease_until"]), shown
    assert shown["try"].strip() == f"curl -H 'Authorization: Bearer {claim['credential']}' {claim['endpoint']}"
    assert (
        shown["browser"].strip()
        == f"http://c-1.localhost:{claim['endpoint'].rpartition(':')[2]}/?holdfast_credential={claim['credential']}"
    )
    server.change("c-1", endpoint=None, credential=None)
    assert ways_in(claim) == [], "a job's worker serves no port"


def test_the_brake_is_shown_with_yes_and_no(cli: Cli, server: FakeHoldfast) -> None:
    assert cli("brake").out == "tripped:      no\n"
    server.brake = {"tripped": True, "tripped_at": datetime.now(UTC).isoformat(), "reason": "50 claims were ended"}
    assert "tripped:      yes\n" in cli("brake", "show").out
    assert json.loads(cli("brake", "-o", "json").out) == server.brake


def test_watching_events_follows_them(busy: FakeHoldfast, tmp_path: Path) -> None:
    env = {**os.environ, "HOLDFAST_URL": ",".join(busy.urls), "HOLDFAST_TOKEN": TOKEN}
    command = [sys.executable, "-m", "holdfast.cli.main", "get", "events", "-w", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "claim.active"
        busy.happen("claim.ended", claim="c-1")
        assert json.loads(process.stdout.readline())["kind"] == "claim.ended"
        process.terminate()


def test_watching_others_prints_again_when_they_change(busy: FakeHoldfast, tmp_path: Path) -> None:
    env = {**os.environ, "HOLDFAST_URL": ",".join(busy.urls), "HOLDFAST_TOKEN": TOKEN}
    command = [sys.executable, "-m", "holdfast.cli.main", "get", "claims", "-w", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["items"][0]["state"] == "active"
        busy.change("c-1", state="ended", outcome="completed")
        busy.happen("claim.ended", claim="c-1")
        assert json.loads(process.stdout.readline())["items"][0]["state"] == "ended"
        process.terminate()


def test_logs_print_the_output(cli: Cli, server: FakeHoldfast) -> None:
    server.first_output = b"0123456789"
    cli("run", "--pool", "linux", "--detach", "--", "true")
    assert cli("logs", "c-1").out == "0123456789"
    assert cli("logs", "c-1", "--offset", "7").out == "789"


def test_doctor_exits_with_1_when_a_check_fails(cli: Cli, server: FakeHoldfast) -> None:
    assert cli("doctor").code == 0
    server.checks.append({"name": "brake", "promise": "P7", "ok": False, "detail": "pulled", "advice": "look"})
    result = cli("doctor")
    assert result.code == 1
    assert "1 of 2 checks failed: brake" in result.err
    assert "look" in result.out


def test_errors_are_one_line_and_code_1(cli: Cli, server: FakeHoldfast) -> None:
    result = cli("claim", "--pool", "linus")
    assert (result.code, result.out) == (1, "")
    assert result.err == "holdfast: no pool 'linus'; did you mean 'linux'?\n"
    server.kill(0)
    server.kill(1)
    result = cli("--url", server.url, "get", "nothing")
    assert result.code == 2  # a usage error


@pytest.mark.parametrize("arguments", [("--version",), ("--url", "http://nowhere:1", "--version"), ("--version", "get", "pools")])
def test_the_version_is_printed_with_and_without_a_command(cli: Cli, arguments: tuple[str, ...]) -> None:
    from holdfast import __version__

    assert cli(*arguments) == (0, f"{__version__}\n", "")


def test_force_needs_a_reason_and_drain_a_yes(cli: Cli, server: FakeHoldfast) -> None:
    assert cli("release", "c-1", "--force").code == 2
    server.pools["linux"] = {"name": "linux"}
    assert cli("drain", "linux").code == 1  # there is no terminal on which to confirm
    assert "linux" in server.pools
    assert cli("drain", "linux", "--yes").code == 0
    assert server.pools == {}


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    from holdfast.cli.main import app

    names = [
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback and command.callback.__module__ != "holdfast.cli.serve"
    ]
    assert len(names) >= 15
    for name in names:
        result = cli(name, "--help")
        assert result.code == 0
        assert f"Example: holdfast {name}" in result.out


def test_a_duty_is_stale_by_its_own_period() -> None:
    from holdfast.cli.frame import duty

    assert "STALE" not in duty({"duty": "prune", "age": 1200.0})
    assert duty({"duty": "match", "age": 60.0}) == "match 1m STALE"
    assert "STALE" in duty({"duty": "match", "age": -1.0})  # a negative age is stale
    assert duty({"duty": "scale", "age": None}) == "scale never"


def test_all_mistakes_of_a_request_are_shown_one_per_line(cli: Cli, server: FakeHoldfast) -> None:
    async def refuse(_: object) -> object:
        wrong = [{"field": "lease", "reason": "must be a duration such as 60s"}, {"field": "wait", "reason": "must not be empty"}]
        return problem(422, "invalid", "lease: must be a duration such as 60s; wait: must not be empty", wrong)

    server.fail_next("POST", "/claims", refuse)  # type: ignore[arg-type]
    result = cli("claim", "--pool", "linux", "--lease", "60s")
    assert result.code == 1
    assert result.err.splitlines() == [
        "holdfast: the server refused 2 fields:",
        "  lease: must be a duration such as 60s",
        "  wait: must not be empty",
    ]
