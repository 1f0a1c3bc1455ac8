"""A person who leaves something empty or names nothing reads what is wrong and what to do, and no request is sent."""

import io
import sys

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast

EMPTY = [
    ("get", "pools", ""), ("get", "claims", ""), ("explain", "claim", ""), ("logs", ""), ("cancel", ""), ("release", ""),
    ("renew", "", "--fence", "1"), ("scale", "", "--warm", "1"), ("freeze", "", "--reason", "x"), ("drain", "", "--yes"),
    ("retire", "", "--reason", "x"), ("delete", "tenant", "", "--yes"), ("token", "revoke", ""), ("recover", "", "--confirm"),
    ("token", "create", "", "--role", "admin"), ("login", "", "--token", TOKEN), ("--url", "", "whoami"),
    ("--token", "", "whoami"), ("--context", "", "whoami"), ("get", "workers", "--tenant", ""), ("get", "claims", "--key", ""),
]  # fmt: skip


@pytest.mark.parametrize("arguments", EMPTY, ids=" ".join)
def test_an_unset_variable_in_a_script_is_refused_by_name(cli: Cli, server: FakeHoldfast, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert result.code == 2, result
    assert "it is empty; if it comes from a variable, the variable is not set" in result.err.replace("\n", " ")
    assert server.log == []


def test_who_waits_for_no_claim_gets_the_code_of_wrong_usage(cli: Cli) -> None:
    assert cli("wait", "").code == 125


def test_a_file_that_does_not_exist_is_named_without_a_number(cli: Cli) -> None:
    assert cli("apply", "-f", "nope.yaml").err == "holdfast: nope.yaml: No such file or directory\n"


def test_who_deletes_a_pool_reads_the_command_for_it(cli: Cli) -> None:
    result = cli("delete", "pool", "linux")
    assert (result.code, "`holdfast drain linux`" in result.err) == (2, True)
    assert "pool  " not in cli("delete", "--help").out


def test_a_question_that_nobody_answers_names_the_option(cli: Cli, server: FakeHoldfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    result = cli("drain", "linux")
    assert result.code == 1
    assert result.err.endswith("add --yes to go on without the question\n")
    assert server.log == []


def test_login_reads_a_piped_token_and_says_what_to_do_without_one(
    cli: Cli, server: FakeHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TOKEN}\n"))
    result = cli("login", server.url)
    assert (result.code, result.err) == (0, "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    result = cli("login", server.url)
    assert (result.code, result.err.startswith("holdfast: no token: ")) == (2, True)


def test_an_agent_that_cannot_start_does_not_exit_as_if_it_had_succeeded(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_WORKER_DIR", raising=False)
    result = cli("agent")
    assert (result.code, result.err) == (2, "holdfast agent: HOLDFAST_WORKER_DIR is not set\n")
