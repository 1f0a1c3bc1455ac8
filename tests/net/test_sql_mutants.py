"""The mutator of the SQL makes each kind of small bug, and gives it a name that survives a move."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutation.sql import apply, mutations
from mutation.targets import FUNCTIONS, Piece, calls, pieces

ROOT = Path(__file__).parents[2]


def mutants(text: str, plpgsql: bool = True) -> dict[str, set[str]]:
    """Returns the mutants of a piece of SQL by operator, with single spaces."""
    piece = Piece(Path("a.sql"), "f", 0, len(text), plpgsql)
    found: dict[str, set[str]] = {}
    for mutation in mutations(piece, text):
        found.setdefault(mutation.operator, set()).add(re.sub(r"\s+", " ", apply(mutation, text)).strip())
    return found


@pytest.mark.parametrize(
    ("text", "operator", "expected"),
    [
        ("WHERE a AND b", "drop-term", {"WHERE b", "WHERE a"}),
        ("WHERE (a OR b AND c)", "drop-term", {"WHERE ( b AND c)", "WHERE (a )", "WHERE (a OR c)", "WHERE (a OR b )"}),
        ("UPDATE t SET a = b OR c, d = 1;", "drop-term", {"UPDATE t SET a = c, d = 1;", "UPDATE t SET a = b , d = 1;"}),
        ("WHERE x = 1 LIMIT 3", "drop-where", {"WHERE true LIMIT 3"}),
        ("IF a IS NULL THEN RETURN; END IF;", "never", {"IF false AND (a IS NULL) THEN RETURN; END IF;"}),
        ("SELECT CASE WHEN a THEN 'x' END", "never", {"SELECT CASE WHEN false AND (a) THEN 'x' END"}),
        ("WHERE a <= b", "compare", {"WHERE a < b", "WHERE a >= b"}),
        ("UPDATE t SET a = 1 WHERE b = 2;", "compare", {"UPDATE t SET a = 1 WHERE b <> 2;"}),
        ("ORDER BY a DESC, b LIMIT 9", "reverse", {"ORDER BY a ASC, b LIMIT 9", "ORDER BY a DESC, b DESC LIMIT 9"}),
        ("ORDER BY a DESC, b", "swap-order", {"ORDER BY b, a DESC"}),
        ("SELECT FROM t FOR UPDATE;", "no-lock", {"SELECT FROM t ;"}),
        ("PERFORM pg_advisory_xact_lock(1);", "drop-statement", {"NULL;"}),
        ("INSERT INTO holdfast.event (a) VALUES (1);", "drop-statement", {"NULL;"}),
        ("WHERE a IS NOT NULL", "negate", {"WHERE a IS NULL"}),
        ("WHERE NOT a", "negate", {"WHERE a"}),
        ("SET a = true WHERE b", "negate", {"SET a = false WHERE b"}),
        ("WHERE state = 'warm'", "swap-word", {"WHERE state = 'parked'"}),
        ("WHERE s IN ('warm', 'held')", "drop-member", {"WHERE s IN ('held')", "WHERE s IN ('warm')"}),
        ("UPDATE h.t SET a = 1, b = 2;", "drop-set", {"UPDATE h.t SET b = 2;", "UPDATE h.t SET a = 1;"}),
        ("UPDATE h.t SET a = f(1, 2);", "drop-set", {"UPDATE h.t SET a = t.a;"}),
        ("SELECT coalesce(a, b)", "no-coalesce", {"SELECT (a)"}),
        ("SELECT least(a, b)", "bound", {"SELECT greatest(a, b)"}),
        ("SELECT interval '10 min'", "number", {"SELECT interval '11 min'"}),
        ("SELECT a << 40", "number", {"SELECT a << 39", "SELECT a << 41"}),
        ("SELECT h + lease", "arithmetic", {"SELECT h - lease"}),
    ],
)
def test_each_operator_makes_its_bug(text: str, operator: str, expected: set[str]) -> None:
    assert mutants(text)[operator] == expected


def test_an_event_in_a_common_table_expression_is_dropped_alone() -> None:
    text = "WITH w AS (SELECT 1), e AS (INSERT INTO holdfast.event (a) SELECT 1 FROM w) SELECT * FROM w"
    assert mutants(text, plpgsql=False)["drop-event"] == {"WITH w AS (SELECT 1), e AS (SELECT 1) SELECT * FROM w"}


def test_comments_strings_and_assignments_are_left_alone() -> None:
    assert mutants("-- a AND b < 3\nSELECT 'a AND b < 3', '{worker,agent}'") == {}


def test_numbers_that_never_matter_are_left_alone() -> None:
    assert mutants("SELECT a[1:n]") == {}
    assert "number" not in mutants("DELETE FROM t WHERE a RETURNING 1;")
    assert mutants("SELECT pg_advisory_xact_lock(hashtextextended('x', 0))") == {}


def test_an_id_depends_on_the_text_around_and_not_on_the_line() -> None:
    def keys(text: str) -> list[str]:
        return [one.key for one in mutations(Piece(Path("a.sql"), "f", 0, len(text), True), text)]

    text = "SELECT 1 FROM a; IF x THEN y := 2; END IF; SELECT 1 FROM a; IF x THEN y := 2; END IF;"
    assert keys("\n\n-- more\n" + text) == keys(text)
    assert len(set(keys(text))) == len(keys(text))


def test_every_function_and_every_statement_is_a_target() -> None:
    found = {(piece.file.name, piece.name) for piece in pieces(ROOT)}
    written = "".join(path.read_text() for path in (ROOT / FUNCTIONS).glob("*.sql"))
    functions = set(re.findall(r"CREATE FUNCTION @fn\.(\w+)", written))
    assert {name for file, name in found if file.endswith(".sql")} == functions
    assert {("claims.py", "DUE"), ("workers.py", "FACTS"), ("history.py", "PRUNE.keys"), ("pools.py", "LOADS")} <= found
    assert calls(ROOT)["end_claim"] >= {"end_claim", "leave", "onward", "park_ttl", "duration"}


def test_the_list_of_mutants_is_printed_without_running_any() -> None:
    command = [sys.executable, "-m", "mutation.run", "--list", "--only", "brake.sql/braked/"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines
    assert all(line.startswith("brake.sql/braked/") for line in lines)
