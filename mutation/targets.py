"""Names the pieces of SQL that are mutated: functions in SQL files, statements in Python modules."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

POSTGRES = Path("src/holdfast/postgres")
FUNCTIONS = POSTGRES / "functions"
# `claims` reads constants of `claim_view`, and `workers` one of `pools`, so these come first.
MODULES = ("pools", "claim_view", "claims", "workers", "fleet", "history", "tokens", "recovery")

# The tests that judge a mutant. Those of them that never reach the store are left out by the recorded run.
JUDGES = ("tests/postgres", "tests/duties", "tests/running", "tests/claimpath", "tests/recovery", "tests/model/test_tenants.py")

HEAD = re.compile(r"^CREATE FUNCTION @fn\.(\w+)", re.MULTILINE)
CALL = re.compile(r"@fn\.(\w+)")
SQL_STARTS = re.compile(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE|,|[a-z]+\.|[a-z_]+ AS MATERIALIZED)")
WORD = re.compile(r"'([a-z][a-z_]*)'")


@dataclass(frozen=True)
class Piece:
    """One function or statement: the text of `file` between `start` and `end`. `plpgsql` has statements and blocks."""

    file: Path
    name: str
    start: int
    end: int
    plpgsql: bool


def pieces(root: Path) -> list[Piece]:
    """Returns everything that is mutated, in the order of the files."""
    found: list[Piece] = []
    for path in sorted((root / FUNCTIONS).glob("*.sql")):
        found += _functions(path.relative_to(root), path.read_text())
    for module in MODULES:
        path = root / POSTGRES / f"{module}.py"
        found += _statements(path.relative_to(root), path.read_text())
    return found


def _functions(file: Path, text: str) -> Iterator[Piece]:
    heads = list(HEAD.finditer(text))
    for n, head in enumerate(heads):
        until = heads[n + 1].start() if n + 1 < len(heads) else len(text)
        start = text.index("$$", head.start(), until) + 2
        end = text.rindex("$$", start, until)
        yield Piece(file, head[1], start, end, "plpgsql" in text[head.start() : start])


def _statements(file: Path, text: str) -> Iterator[Piece]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()

    def piece(name: str, node: ast.expr) -> Piece | None:
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        start, end = len(raw[:first].decode()), len(raw[:last].decode())
        literal = re.fullmatch(r'(f?(?:"""|"))(.*?)("""|")', text[start:end], re.DOTALL)
        if literal is None or not SQL_STARTS.match(literal[2]):
            return None
        return Piece(file, name, start + len(literal[1]), end - len(literal[3]), plpgsql=False)

    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        named = [(name, value)]
        if isinstance(value, ast.Dict):
            named = [
                (f"{name}.{k.value}", v) for k, v in zip(value.keys, value.values, strict=True) if isinstance(k, ast.Constant)
            ]
        for each, literal in named:
            if isinstance(literal, ast.JoinedStr) or (isinstance(literal, ast.Constant) and isinstance(literal.value, str)):
                found = piece(each, literal)
                if found is not None:
                    yield found


def words(root: Path) -> set[str]:
    """Returns the words that the SQL compares or stores, such as 'expired'. Calls with other words take other branches."""
    return {word for piece in pieces(root) for word in WORD.findall((root / piece.file).read_text()[piece.start : piece.end])}


def calls(root: Path) -> dict[str, set[str]]:
    """Returns for each function the functions that may run when it is called, including itself."""
    direct: dict[str, set[str]] = {}
    for path in sorted((root / FUNCTIONS).glob("*.sql")):
        text = path.read_text()
        for piece in _functions(path, text):
            direct[piece.name] = {piece.name, *CALL.findall(text[piece.start : piece.end])}
    while True:
        wider = {name: set().union(*(direct.get(one, {one}) for one in reached)) for name, reached in direct.items()}
        if wider == direct:
            return direct
        direct = wider
