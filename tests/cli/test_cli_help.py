"""A person reads the help in a terminal of 80 columns: whole sentences, and examples that can be pasted."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from cli_results import Cli

from holdfast.cli.main import app


def words_of(group: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """Yields the words of each command and of each group."""
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from words_of(command, *words, name)


@pytest.mark.parametrize("words", list(words_of(typer.main.get_command(app))), ids=" ".join)
def test_the_help_of_a_command_fits_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = cli(*words, "--help")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    cut = [line for line in lines if line.endswith("...") and not line.startswith("Usage")]
    assert cut == [], "sentences in the list of commands are whole"
    assert not re.search(r"\w-\n *\w", result.out), "no word of an example is cut in two"
