"""Every example in the documents can be found by the test that runs it, and uses commands and options that exist."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from documented import DOCUMENTS, ROOT, commands, examples, left, programs
from holdfast.cli.main import app
from holdfast.cli.manifest import read

EXAMPLE = re.compile(r"Example: (?:[A-Z_]+=\S+ )?(holdfast [^>|\n]+)")
# Groups only have further commands, and people do not start an agent.
WITHOUT_EXAMPLE = {"holdfast brake", "holdfast delete", "holdfast token", "holdfast agent"}
INLINE = re.compile(r"`(holdfast [^`\n]+)`")


def test_there_are_examples_in_every_place_where_people_look_first() -> None:
    shown = {command.document for command in commands()}
    assert {"README.md", "docs/cli.md", "docs/pools.md", "docs/operations.md", "docs/plan.md"} <= shown
    assert {program.document for program in programs()} >= {"README.md", "docs/sdk.md"}


def test_a_block_of_commands_says_that_it_is_one() -> None:
    """Otherwise no test would run its commands."""
    unmarked = [each for each in examples() if each.language not in ("sh", "console")]
    starts = ("holdfast ", "make ", "curl ", "pip ", "kubectl ", "$ ")
    assert [(each.document, each.line) for each in unmarked if each.text.startswith(starts)] == []


def test_what_no_test_runs_exists_and_has_a_reason() -> None:
    for each in left():
        assert len(each.reason) > 20, each
        for start in each.starts:
            found = [c for c in commands() if c.document == each.document and c.text.startswith(start)]
            assert found, f"{each.document} has no command that begins with {start!r}"
        for file in re.findall(r"tests/[\w/.]*", each.reason):
            assert (ROOT / file.rstrip(".")).exists(), file


@pytest.mark.parametrize("document", sorted({each.document for each in examples()}))
def test_the_pools_and_tenants_in_the_documents_can_be_applied(document: str) -> None:
    for each in examples():
        if each.document == document and each.language == "yaml" and "kind:" in each.text:
            assert read(each.text, f"{document}:{each.line}")


def documented_calls() -> list[tuple[str, str]]:
    """Returns every call of the command line in a block or in a sentence, with its place."""
    calls = [
        (f"{c.document}:{c.line}", line)
        for c in commands()
        for line in re.findall(r"(?:^|[|(;&] *|\$\()(holdfast [^|;)#\n]+)", c.text)
    ]
    for path in sorted(path for pattern in (*DOCUMENTS, "docs/decisions/*.md") for path in ROOT.glob(pattern)):
        for text in INLINE.findall(path.read_text(encoding="utf-8")):
            calls.append((str(path.relative_to(ROOT)), text))
    return calls + [(f"help of {name}", text) for name, command in all_commands() for text in EXAMPLE.findall(command.help or "")]


def all_commands() -> Iterator[tuple[str, Any]]:
    """Yields each command of the command line with its name, also those of groups such as `token`."""
    groups: list[tuple[str, Any]] = [("holdfast", typer.main.get_command(app))]
    while groups:
        prefix, group = groups.pop()
        for name, command in group.commands.items():
            yield f"{prefix} {name}", command
            if hasattr(command, "commands"):
                groups.append((f"{prefix} {name}", command))


def test_the_help_of_every_command_has_an_example() -> None:
    assert {name for name, command in all_commands() if not EXAMPLE.search(command.help or "")} == WITHOUT_EXAMPLE


def test_every_call_in_the_documents_names_a_command_and_options_that_exist() -> None:
    root: Any = typer.main.get_command(app)
    wrong = []
    calls = documented_calls()
    assert len(calls) > 60
    for place, text in calls:
        command = root
        words = shlex.split(text.replace("…", " ").split(" -- ")[0], posix=False)[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
        known |= {option for each in root.params for option in each.opts} if command is root else set()
        options = {word.split("=")[0].strip("[]") for word in words if word.startswith("-") and word not in ("-", "--")}
        unknown = bool(words) and command is root and not words[0].startswith("-")
        if unknown or options - known:
            wrong.append((place, text, sorted(options - known)))
    assert wrong == []
