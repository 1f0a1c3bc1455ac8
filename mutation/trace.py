"""Finds out which tests reach which piece of SQL, from one recorded run of the tests."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .targets import CALL, POSTGRES, Piece, calls

WRITES = ("UPDATE holdfast.", "INSERT INTO holdfast.")
HOLE = re.compile(r"@\w+|\{\w+\}")
Record = Callable[[list[str]], dict[str, Any]]


@dataclass(frozen=True)
class Reach:
    """How a test reaches a piece. `about` is the share of its calls that go there, per second."""

    test: str
    about: float
    shapes: frozenset[str]


class Trace:
    """The recorded seconds and statements of each test. A file stores them until the product or the test's file changes."""

    def __init__(self, root: Path, file: Path) -> None:
        self._root, self._file = root, file
        self._tests: dict[str, Any] = {}
        if file.exists():
            kept = json.loads(file.read_text())
            if kept["product"] == self._product():
                self._tests = {test: one for test, one in kept["tests"].items() if one["file"] == self._digest(test)}

    def missing(self, tests: Iterable[str]) -> list[str]:
        return [test for test in tests if test not in self._tests]

    def add(self, recorded: dict[str, Any]) -> None:
        for test, one in recorded.items():
            self._tests[test] = one | {"file": self._digest(test)}
        self._file.write_text(json.dumps({"product": self._product(), "tests": self._tests}))

    def failed(self, tests: Iterable[str]) -> list[str]:
        """Returns the tests that fail without any mutation, because they cannot judge a mutant."""
        return [test for test in tests if self._tests[test]["failed"]]

    def seconds(self, test: str) -> float:
        return float(self._tests[test]["seconds"])

    def within(self, seconds: float, tests: Iterable[str]) -> list[str]:
        """Returns the first tests that take at most so long together, leaving out tests that take too long."""
        chosen, left = [], seconds
        for test in tests:
            if self.seconds(test) <= left:
                chosen.append(test)
                left -= self.seconds(test)
        return chosen

    def reaching(self, pieces: list[Piece], tests: Iterable[str]) -> dict[tuple[Path, str], list[str]]:
        """Returns the tests that reach each piece. First come tests that are mainly about it, quick, and unlike earlier ones."""
        texts = {piece: (self._root / piece.file).read_text()[piece.start : piece.end] for piece in pieces}
        found: dict[tuple[Path, str], list[Reach]] = {(piece.file, piece.name): [] for piece in pieces}
        reached: dict[str, set[Piece]] = {}  # pieces that are reached by a statement
        called = calls(self._root)
        counted = {name for test in self._tests.values() for name in test["called"]}
        for test in tests:
            one = self._tests[test]
            shapes: dict[Piece, set[str]] = {}
            for text, kinds in one["sent"].items():
                if text not in reached:
                    names = {name for call in CALL.findall(text) for name in called.get(call, ())}
                    reached[text] = {
                        piece for piece, source in texts.items()
                        if (piece.name in names if piece.file.suffix == ".sql" else _holds(text, source))
                    }  # fmt: skip
                for piece in reached[text]:
                    shapes.setdefault(piece, set()).update(f"{text[:40]} {kind}" for kind in kinds)
            # A test that writes rows by itself prepares a case that the product's own statements do not make.
            prepared = {text for text in one["sent"] if not reached[text] and text.startswith(WRITES)}
            # A test that reads the tables by itself checks what a statement wrote, and not only its answer.
            reads = (
                3 if any(not reached[text] and text.startswith("SELECT") and "holdfast." in text for text in one["sent"]) else 1
            )
            product = sum(n for text, n in one["counts"].items() if reached[text])
            for piece, kinds_of in shapes.items():
                kinds_of |= prepared
                # Postgres does not count SQL functions that it inlines into their callers. For these, every possible caller
                # counts.
                if piece.file.suffix != ".sql":
                    about = sum(n for text, n in one["counts"].items() if piece in reached[text]) / product
                elif piece.name in counted:
                    about = one["called"].get(piece.name, 0) / (sum(one["called"].values()) or 1)
                else:
                    about = 1 / len(shapes)
                if about:
                    found[piece.file, piece.name].append(Reach(test, reads * about / (0.2 + one["seconds"]), frozenset(kinds_of)))
        return {key: _ordered(reaches) for key, reaches in found.items()}

    def _product(self) -> str:
        digest = hashlib.sha256()
        for path in sorted((self._root / POSTGRES).rglob("*")):
            if path.suffix in (".py", ".sql"):
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _digest(self, test: str) -> str:
        path = self._root / test.partition("::")[0]
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def _ordered(reaches: list[Reach]) -> list[str]:
    left, ordered, seen = set(reaches), [], set[str]()
    while left:
        best = max(left, key=lambda one: (one.about * (1 + 2 * len(one.shapes - seen)), one.test))
        ordered.append(best.test)
        left.remove(best)
        seen |= best.shapes
    return ordered


def _holds(sent: str, source: str) -> bool:
    """Returns whether a statement that was sent was made from this source, which may have placeholders that were filled in."""
    source = source.replace("{{", "{").replace("}}", "}")
    parts = [part for part in HOLE.split(source) if part.strip()]
    return all(part in re.sub(HOLE, "", sent) or part in sent for part in parts)
