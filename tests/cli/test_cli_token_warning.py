"""A person who gives a token to a tenant of a fleet on one machine reads what that tenant can do with it."""

import pytest
from cli_results import Cli

from served_api import Stage


@pytest.mark.parametrize(("role", "warned"), [(("tenant", "--tenant", "acme"), True), (("operator",), False)])
def test_a_tenants_token_comes_with_a_warning_beside_it(stage: Stage, run_cli: Cli, role: tuple[str, ...], warned: bool) -> None:
    done = run_cli("--url", stage.url, "--token", "admin", "token", "create", "ci", "--role", *role)
    assert done.code == 0
    assert done.out.startswith("hf_")
    assert len(done.out.split()) == 1, "a script can store the output as the token"
    assert ("can read the fleet's key" in done.err) == warned


def test_no_warning_where_commands_are_kept_apart(stage: Stage, run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(stage.wired.cluster), "separates_jobs", True)
    done = run_cli("--url", stage.url, "--token", "admin", "token", "create", "ci", "--role", "tenant", "--tenant", "acme")
    assert (done.code, done.err) == (0, "")


def test_doctor_names_what_a_command_can_read(stage: Stage) -> None:
    checks = {check["name"]: check for check in stage.ask("GET", "/v1/doctor").json["checks"]}
    check = checks["what a command can read on this machine"]
    assert check["ok"], "it is how this backend works, and no fault to repair"
    assert "admin token" in check["detail"]
    assert "docs/security.md" in check["advice"]
