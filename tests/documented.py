"""The examples in the documents: shell commands and Python programs, and which of them no test runs."""

import functools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NOT_RUN = ROOT / "tests" / "docs" / "not_run.toml"
DOCUMENTS = ("*.md", "docs/*.md", "mutation/*.md", "testcluster/*.md")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """A block of a document. `language` is as the document gives it."""

    document: str
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """A shell command of an example, complete with its further lines."""

    document: str
    line: int
    text: str


class Left(NamedTuple):
    """Commands that no test runs, by how they begin."""

    document: str
    starts: tuple[str, ...]
    reason: str


@functools.cache
def examples() -> tuple[Example, ...]:
    found = []
    for path in sorted(path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        for match in FENCED.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append(Example(str(path.relative_to(ROOT)), line, match[1], match[2]))
    return tuple(found)


def programs() -> list[Example]:
    return [each for each in examples() if each.language == "python"]


@functools.cache
def commands() -> tuple[Command, ...]:
    return tuple(command for each in examples() if each.language in ("sh", "console") for command in _commands(each))


def _commands(example: Example) -> Iterator[Command]:
    """Yields the commands of a block. Of a console, these are the lines after `$ `; the others are output."""
    text, begin = "", 0
    for number, line in enumerate(example.text.splitlines(), example.line):
        if example.language == "console":
            if line.startswith("$ "):
                yield Command(example.document, number, line[2:])
            continue
        if not text and (not line.strip() or line.startswith("#")):
            continue
        begin = begin if text else number
        text += f"{line}\n"
        if _complete(text):
            yield Command(example.document, begin, text.rstrip("\n"))
            text = ""
    assert not text, f"{example.document}:{begin}: not a complete command: {text}"


def _complete(text: str) -> bool:
    """Returns whether bash takes the text for whole commands. It warns about a here-document without an end."""
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    return checked.returncode == 0 and not checked.stderr and not text.endswith("\\\n")


@functools.cache
def left() -> tuple[Left, ...]:
    entries = tomllib.loads(NOT_RUN.read_text(encoding="utf-8"))["not_run"]
    return tuple(Left(each["document"], tuple(each["starts"]), each["reason"]) for each in entries)


def reason_not_to_run(command: Command) -> str | None:
    for each in left():
        if each.document == command.document and command.text.startswith(each.starts):
            return each.reason
    return None
