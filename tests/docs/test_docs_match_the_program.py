"""The documents name what the program has: statuses, options, variables."""

import re
from pathlib import Path
from typing import Any

import typer

from holdfast.agent.job import environment
from holdfast.agent.messages import Assignment
from holdfast.agent.process import BASE
from holdfast.api.problems import TITLES
from holdfast.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"


def section(document: str, heading: str) -> str:
    text = (DOCS / document).read_text(encoding="utf-8")
    return text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def test_a_reader_of_the_api_finds_every_status_that_it_answers() -> None:
    table = (DOCS / "api.md").read_text(encoding="utf-8").split("| Status | Meaning |", 1)[1].split("\n\n", 1)[0]
    assert {int(status) for status in re.findall(r"^\| (\d{3}) \|", table, re.MULTILINE)} == set(TITLES)


def test_a_reader_finds_which_commands_take_pooled() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    taking = {name for name, command in commands.items() if any("--pooled" in option.opts for option in command.params)}
    text = section("operations.md", "PgBouncer").split("```", 1)[0]
    assert set(re.findall(r"`holdfast (\w+)`", text)) == taking | {"migrate"}


def test_a_reader_finds_every_variable_that_a_command_gets() -> None:
    text = section("pools.md", "WorkerPool").split("A command and its hooks get", 1)[1]
    assignment = Assignment(claim="c-1", fence=1, tenant="acme")
    variables = {*BASE, *environment(assignment, Path("payload.json"))}
    assert variables - set(re.findall(r"`([A-Z_]+)`", text)) == set()
