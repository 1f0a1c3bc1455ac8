"""Know which tests reach which piece of SQL, from one recorded run of them."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .targets import CALL, POSTGRES, Piece, calls

HOLE = re.compile(r"@\w+|\{\w+\}")
Record = Callable[[list[str]], dict[str, Any]]


class Trace:
    """The recorded seconds and statements of each test, kept in a file until the product or the test's file changes."""

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
        """Tests that fail without any mutation: they could judge nothing."""
        return [test for test in tests if self._tests[test]["failed"]]

    def seconds(self, test: str) -> float:
        return float(self._tests[test]["seconds"])

    def reaching(self, pieces: list[Piece], tests: Iterable[str]) -> dict[tuple[Path, str], list[str]]:
        """For each piece, the tests that reach it: quick and narrow ones first, since they fail soonest."""
        called = calls(self._root)
        texts = {piece: (self._root / piece.file).read_text()[piece.start : piece.end] for piece in pieces}
        found: dict[tuple[Path, str], dict[str, set[str]]] = {(piece.file, piece.name): {} for piece in pieces}
        reached: dict[str, set[tuple[Path, str]]] = {}  # by a statement
        for test in tests:
            for text, shapes in self._tests[test]["sent"].items():
                if text not in reached:
                    names = {name for call in CALL.findall(text) for name in called.get(call, ())}
                    reached[text] = {
                        (piece.file, piece.name) for piece, source in texts.items()
                        if (piece.name in names if piece.file.suffix == ".sql" else _holds(text, source))
                    }  # fmt: skip
                for key in reached[text]:
                    found[key].setdefault(test, set()).update(f"{text[:40]} {shape}" for shape in shapes)
        return {key: self._ordered(shapes) for key, shapes in found.items()}

    def _ordered(self, shapes: dict[str, set[str]]) -> list[str]:
        """Tests in the order in which each adds most kinds of calls per second; those that add none come last, quick first."""
        left, ordered, seen = set(shapes), [], set[str]()
        while left:
            best = max(left, key=lambda test: (len(shapes[test] - seen) / (0.2 + self.seconds(test)), -self.seconds(test), test))
            ordered.append(best)
            left.remove(best)
            seen |= shapes[best]
        return ordered

    def _product(self) -> str:
        digest = hashlib.sha256()
        for path in sorted((self._root / POSTGRES).rglob("*")):
            if path.suffix in (".py", ".sql"):
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _digest(self, test: str) -> str:
        path = self._root / test.partition("::")[0]
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def _holds(sent: str, source: str) -> bool:
    """Whether a statement that was sent was made from this source, which may have holes that were filled in."""
    source = source.replace("{{", "{").replace("}}", "}")
    parts = [part for part in HOLE.split(source) if part.strip()]
    return all(part in re.sub(HOLE, "", sent) or part in sent for part in parts)
