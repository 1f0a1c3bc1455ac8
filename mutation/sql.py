"""Finds the mutations of a piece of SQL: each is one small bug of a kind that people make."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .clauses import (
    case_conditions,
    if_conditions,
    in_lists,
    order_items,
    set_items,
    statements,
    terms,
    wheres,
)
from .targets import Piece
from .tokens import Token, closing, tokens_of

TURNED = {"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "=": ("<>",), "<>": ("=",)}
# For each state, another state that a careless reader would confuse with it.
TWINS = {
    "waiting": "assigned", "assigned": "active", "active": "assigned", "ended": "active", "spawning": "warm", "warm": "parked",
    "parked": "warm", "held": "warm", "retiring": "gone", "gone": "retiring", "live": "draining", "draining": "live",
    "stale": "done", "done": "stale", "braked": "done", "recovering": "done", "frozen": "done", "worker": "claim",
    "claim": "worker",
    "session": "job", "job": "session", "always": "claim", "off": "claim", "idle": "draining", "lost": "released",
}  # fmt: skip
AROUND = 4  # tokens on each side that a mutation's id depends on

Edit = tuple[str, int, int, str]  # operator, start, end, replacement


@dataclass(frozen=True)
class Mutation:
    """One replacement in one file. `key` names it without its file and line, so that it survives a move."""

    file: Path
    name: str
    operator: str
    key: str
    start: int
    end: int
    replacement: str
    line: int
    shown: str

    @property
    def id(self) -> str:
        return f"{self.file.name}/{self.key}"


def mutations(piece: Piece, text: str) -> list[Mutation]:
    """Returns every mutation of a piece, in the order of its text."""
    tokens = tokens_of(text, piece.start, piece.end)
    edits = sorted({edit for find in OPERATORS for edit in find(tokens, piece, text)}, key=lambda e: (e[1], e[2], e[0], e[3]))
    seen: dict[str, int] = {}
    found = []
    for operator, start, end, replacement in edits:
        before = [t.text for t in tokens if t.end <= start][-AROUND:]
        after = [t.text for t in tokens if t.start >= end][:AROUND]
        inside = " ".join(text[start:end].split())
        digest = hashlib.sha256(" ".join([*before, "|", inside, "|", replacement, "|", *after]).encode()).hexdigest()[:8]
        stem = f"{piece.name}/{operator}/{digest}"
        seen[stem] = seen.get(stem, 0) + 1
        shown = f"{' '.join(before)} [{inside}] → [{' '.join(replacement.split())}] {' '.join(after)}"
        line = text.count("\n", 0, start) + 1
        found.append(Mutation(piece.file, piece.name, operator, f"{stem}/{seen[stem]}", start, end, replacement, line, shown))
    return found


def apply(mutation: Mutation, text: str) -> str:
    return text[: mutation.start] + mutation.replacement + text[mutation.end :]


def drop_terms(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    items = list(set_items(tokens))
    for start, end in terms(tokens):
        # The first term of `SET a = b OR c` begins after the equals sign.
        begin = max([start, *(item.value for item in items if start < item.equals < end <= item.end)])
        yield "drop-term", begin, end, ""
    for start, end in wheres(tokens):
        yield "drop-where", start, end, " true "


def skip_blocks(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    for start, end in [*if_conditions(tokens), *case_conditions(tokens)]:
        yield "never", start, end, f"false AND ({text[start:end]})"


def turn_comparisons(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    assigned = {item.equals for item in set_items(tokens)}
    for token in tokens:
        if token.kind == "op" and token.text in TURNED and token.start not in assigned:
            for other in TURNED[token.text]:
                yield "compare", token.start, token.end, other


def reorder(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    for items in order_items(tokens):
        for _, end, last in items:
            if last.word == "DESC":
                yield "reverse", last.start, last.end, "ASC"
            elif last.word == "ASC":
                yield "reverse", last.start, last.end, "DESC"
            else:
                yield "reverse", end, end, " DESC"
        if len(items) > 1:
            (a, b, _), (c, d, _) = items[:2]
            yield "swap-order", a, d, f"{text[c:d]}, {text[a:b]}"


def skip_locks(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    for a, b in itertools.pairwise(tokens):
        if (a.word, b.word) in {("FOR", "UPDATE"), ("SKIP", "LOCKED")}:
            after = next((t for t in tokens if t.start >= b.end), None)
            skip = after is not None and after.word == "SKIP"
            yield "no-lock", a.start, (b.end + len(" SKIP LOCKED") if skip else b.end), ""


def negate(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    for n, token in enumerate(tokens):
        before, after = tokens[n - 1].word if n else "", tokens[n + 1].word if n + 1 < len(tokens) else ""
        match token.word:
            case "NOT" if before != "IS" and after != "NULL":
                yield "negate", token.start, token.end, ""
            case "NOT" if before == "IS":
                yield "negate", token.start, token.end, ""
            case "IS":
                if after in ("NULL", "DISTINCT"):
                    yield "negate", token.end, token.end, " NOT"
            case "IN" if before != "NOT" and tokens[n - 2].word != "FOR":
                yield "negate", token.start, token.start, "NOT "
            case "EXISTS" if before != "NOT":
                yield "negate", token.start, token.start, "NOT "
            case "FOUND" if before != "NOT":
                yield "negate", token.start, token.start, "NOT "
            case "TRUE":
                yield "negate", token.start, token.end, "false"
            case "FALSE":
                yield "negate", token.start, token.end, "true"


def swap_words(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    listed: set[int] = set()
    for members in in_lists(tokens):
        listed |= {member.start for member in members}
        for n, member in enumerate(members):
            start, end = (member.start, members[n + 1].start) if n + 1 < len(members) else (members[n - 1].end, member.end)
            yield "drop-member", start, end, ""
    for token in tokens:
        if token.kind == "string" and token.text[1:-1] in TWINS and token.start not in listed:
            yield "swap-word", token.start, token.end, f"'{TWINS[token.text[1:-1]]}'"


def drop_sets(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    for item in set_items(tokens):
        if item.rest is not None:
            yield "drop-set", item.rest[0], item.rest[1], ""
        elif item.table:
            yield "drop-set", item.value, item.end, f"{item.table}.{item.column}"


def drop_statements(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    if piece.plpgsql:
        for start, end in statements(tokens):
            yield "drop-statement", start, end, "NULL"
        return
    for n, token in enumerate(tokens[:-2]):
        if [t.word for t in tokens[n : n + 3]] == ["INSERT", "INTO", "HOLDFAST.EVENT"]:
            inside = n > 0 and tokens[n - 1].text == "("
            end = tokens[closing(tokens, n - 1)].start if inside else piece.end
            if inside or n > 0:  # without its event, a statement that contains only the event would be empty
                yield "drop-event", token.start, end, "SELECT 1"


def drop_functions(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    for n, token in enumerate(tokens[:-1]):
        if tokens[n + 1].text != "(" or token.word not in ("COALESCE", "GREATEST", "LEAST"):
            continue
        close = closing(tokens, n + 1)
        if token.word == "COALESCE":
            comma = next(t for t in tokens[n + 2 : close] if t.text == "," and t.depth == token.depth + 1)
            yield "no-coalesce", token.start, tokens[close].end, f"({text[tokens[n + 2].start : comma.start]})"
        else:
            yield "bound", token.start, token.end, "least" if token.word == "GREATEST" else "greatest"


def change_numbers(tokens: list[Token], piece: Piece, text: str) -> Iterator[Edit]:
    same = {t.start for n, t in enumerate(tokens) if t.kind == "number" and _never_matters(tokens, n)}
    for n, token in enumerate(tokens):
        if token.kind == "number" and token.start not in same:
            value = token.text
            others = [str(int(value) - 1)] if value.isdigit() and value != "0" else ["1"] if value == "0" else [value + "1"]
            if value.isdigit() and int(value) > 1:
                others.append(str(int(value) + 1))
            for other in others:
                yield "number", token.start, token.end, other
        elif token.kind == "string" and n and tokens[n - 1].word == "INTERVAL":
            more = re.sub(r"\d+", lambda m: str(int(m[0]) + 1), token.text, count=1)
            yield "number", token.start, token.end, more if token.text[1:-1] != "0" else "'1 s'"
        elif token.kind == "op" and token.text in "+-" and n:
            yield "arithmetic", token.start, token.end, "-" if token.text == "+" else "+"


def _never_matters(tokens: list[Token], n: int) -> bool:
    """Returns whether another number would do as well. `RETURNING 1` only shows that a row was changed."""
    return (n > 0 and tokens[n - 1].word == "RETURNING") or _is_lock_seed(tokens, n) or _is_slice_start(tokens, n)


def _is_lock_seed(tokens: list[Token], n: int) -> bool:
    """Returns whether a number is the seed or the key of an advisory lock, for which any other number would work as well."""
    return (
        any(t.word in ("HASHTEXTEXTENDED", "PG_ADVISORY_XACT_LOCK") for t in tokens[max(0, n - 8) : n])
        and tokens[n + 1].text == ")"
    )


def _is_slice_start(tokens: list[Token], n: int) -> bool:
    """Returns whether a number begins a slice such as `a[1:n]`. An array begins at 1, so a slice from 0 is the same."""
    return n > 0 and tokens[n - 1].text == "[" and n + 1 < len(tokens) and tokens[n + 1].text == ":"


OPERATORS: tuple[Callable[[list[Token], Piece, str], Iterator[Edit]], ...] = (
    drop_terms, skip_blocks, turn_comparisons, reorder, skip_locks, negate, swap_words, drop_sets, drop_statements,
    drop_functions, change_numbers,
)  # fmt: skip
