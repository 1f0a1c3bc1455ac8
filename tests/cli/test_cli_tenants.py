"""`delete tenant` and the note about a priority, with the real API."""

import sys
from pathlib import Path

import pytest
from cli_results import Cli

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from served_api import Stage


@pytest.fixture
def stage(served: Stage, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Stage:
    monkeypatch.setenv("HOLDFAST_URL", served.url)
    monkeypatch.setenv("HOLDFAST_TOKEN", "admin")
    return served


def test_deleting_a_tenant_asks_first_and_says_what_it_did(cli: Cli, stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {})
    assert cli("delete", "tenant", "acme").code == 1  # there is no terminal on which to confirm
    assert stage.ask("GET", "/v1/tenants/acme").status == 200
    result = cli("delete", "tenant", "acme", "--yes")
    assert (result.code, result.out, result.err) == (0, "tenant acme deleted\n", "")
    assert stage.ask("GET", "/v1/tenants/acme").status == 404


def test_deleting_a_tenant_that_is_busy_or_unknown_says_why_not(cli: Cli, stage: Stage) -> None:
    stage.claim()
    result = cli("delete", "tenant", "acme", "--yes")
    assert result.code == 1
    assert "tenant 'acme' has 1 live and 0 waiting claims; end them first" in result.err
    result = cli("delete", "tenant", "acmee", "--yes")
    assert (result.code, result.err) == (1, "holdfast: there is no tenant 'acmee'; did you mean 'acme'?\n")


def test_running_with_more_priority_than_allowed_prints_what_was_granted(cli: Cli, stage: Stage) -> None:
    result = cli("run", "--pool", "agents", "--tenant", "acme", "--priority", "5", "--detach", "--", "true")
    assert result.code == 0
    assert result.err.startswith("note: priority 5 was requested and 0 granted, because tenant 'acme' may use at most 0")


def test_claiming_with_wrong_durations_says_what_to_write_for_each(cli: Cli, stage: Stage) -> None:
    result = cli("claim", "--pool", "direct", "--lease", "soon", "--wait", "1 minute")
    assert result.code == 2
    assert "--wait: '1 minute' is not a duration such as 500ms, 60s or 1h30m" in result.err
    assert "--lease: 'soon' is not a duration such as 500ms, 60s or 1h30m" in result.err


def test_running_with_several_mistakes_prints_a_line_for_each(cli: Cli, stage: Stage) -> None:
    result = cli("run", "--pool", "agents", "--deadline", "soon", "--key", "k" * 300, "--", "true")
    assert result.code == 125
    assert sorted(result.err.splitlines()) == [
        "  deadline: must be a duration such as 500ms, 60s, 10m or 1h30m",
        "  key: must have at most 255 characters",
        "holdfast: the server refused 2 fields:",
    ]
