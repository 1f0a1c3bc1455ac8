"""Finds the clauses of SQL in a list of tokens: terms, conditions, lists, assignments, orders, statements."""

from collections.abc import Iterator
from dataclasses import dataclass

from .tokens import CLOSES, OPENS, Token, closing

# Tokens that end an expression to their left, and tokens that begin an expression to their right.
ENDS = {
    "THEN", "LOOP", "ORDER", "GROUP", "LIMIT", "OFFSET", "FOR", "RETURNING", "ELSE", "END", "UNION", "AS", "FROM", "WHERE",
    "HAVING",
    "LEFT", "JOIN", "CROSS", "FULL", "ON", "INTO", "WHEN", "SET", "DO",
}  # fmt: skip
BEGINS = {
    "WHERE",
    "ON",
    "WHEN",
    "IF",
    "ELSIF",
    "HAVING",
    "SELECT",
    "RETURN",
    "THEN",
    "ELSE",
    "BY",
    "EXISTS",
    ",",
    ";",
    ":=",
    "DISTINCT",
}

Span = tuple[int, int]


@dataclass(frozen=True)
class SetItem:
    """One `column = value` of an UPDATE. `rest` is what to delete to drop it; None if it is the only one."""

    column: str
    equals: int
    value: int
    end: int
    table: str
    rest: Span | None


def _right(tokens: list[Token], at: int, depth: int, stops: set[str]) -> int:
    """Returns the index after the expression that begins at this index."""
    cases = 0
    for n in range(at, len(tokens)):
        token = tokens[n]
        if token.depth < depth:
            return n
        if token.depth > depth:
            continue
        if token.word == "CASE":
            cases += 1
        elif token.word == "END" and cases:
            cases -= 1
        elif not cases and (token.word in stops or token.text in (",", ";")) and not _distinct_from(tokens, n):
            return n
        elif token.text in CLOSES and n + 1 < len(tokens) and tokens[n + 1].depth < depth:
            continue
    return len(tokens)


def _distinct_from(tokens: list[Token], n: int) -> bool:
    return tokens[n].word == "FROM" and tokens[n - 1].word == "DISTINCT"


def _left(tokens: list[Token], at: int, depth: int, stops: set[str]) -> int:
    """Returns the index at which the expression begins that ends before this index."""
    cases = 0
    for n in range(at - 1, -1, -1):
        token = tokens[n]
        if token.depth < depth or (token.depth == depth and token.text in OPENS and tokens[n + 1].depth > depth and n + 1 == at):
            return n + 1
        if token.depth > depth:
            continue
        if token.word == "END":
            cases += 1
        elif token.word == "CASE" and cases:
            cases -= 1
        elif not cases and token.word in stops and not (token.word == "DISTINCT" and tokens[n - 1].word in ("IS", "NOT")):
            return n + 1
    return 0


def terms(tokens: list[Token]) -> Iterator[Span]:
    """Yields what to delete to drop one term of an AND or an OR."""
    for n, token in enumerate(tokens):
        if token.word not in ("AND", "OR"):
            continue
        # A term of OR may be a whole chain of AND. A term of AND ends at the next AND or OR.
        joints = {"AND", "OR"} if token.word == "AND" else {"OR"}
        left = _left(tokens, n, token.depth, BEGINS | joints)
        right = _right(tokens, n + 1, token.depth, ENDS | joints)
        yield token.start, tokens[right - 1].end
        if left == 0 or tokens[left - 1].word != token.word:
            yield tokens[left].start, token.end


def wheres(tokens: list[Token]) -> Iterator[Span]:
    """Yields conditions after WHERE that have a single term, so that the whole condition must be dropped."""
    for n, token in enumerate(tokens[:-1]):
        if token.word == "WHERE":
            end = _right(tokens, n + 1, token.depth, ENDS)
            if not any(t.word in ("AND", "OR") and t.depth == token.depth for t in tokens[n + 1 : end]):
                yield tokens[n + 1].start, tokens[end - 1].end


def if_conditions(tokens: list[Token]) -> Iterator[Span]:
    """Yields the conditions of IF, ELSIF and EXIT WHEN."""
    for n, token in enumerate(tokens[:-1]):
        before = tokens[n - 1].word if n else ""
        if (token.word == "IF" and before != "END") or token.word == "ELSIF" or (token.word == "WHEN" and before == "EXIT"):
            end = next(i for i in range(n, len(tokens)) if tokens[i].word in ("THEN", ";") and _level(tokens, n, i))
            yield tokens[n + 1].start, tokens[end - 1].end


def _level(tokens: list[Token], start: int, at: int) -> bool:
    """Returns whether a THEN belongs to the IF before it, and not to a CASE in its condition."""
    opened = sum({"CASE": 1, "END": -1}.get(t.word, 0) for t in tokens[start + 1 : at])
    return opened == 0 and tokens[at].depth == tokens[start].depth


def case_conditions(tokens: list[Token]) -> Iterator[Span]:
    """Yields the conditions of CASE WHEN. The form CASE value WHEN has none."""
    open_cases: list[bool] = []
    for n, token in enumerate(tokens[:-1]):
        if token.word == "CASE":
            open_cases.append(tokens[n + 1].word == "WHEN")
        elif (token.word == "END" and open_cases and tokens[n + 1].word not in ("IF", "LOOP", ";")) or (
            token.word == "END" and open_cases and tokens[n + 1].text == ";"
        ):
            open_cases.pop()
        elif token.word == "WHEN" and open_cases and open_cases[-1]:
            end = next(i for i in range(n, len(tokens)) if tokens[i].word == "THEN" and _level(tokens, n, i))
            yield tokens[n + 1].start, tokens[end - 1].end


def in_lists(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yields the members of `IN ('a', 'b')`, if there are at least two."""
    for n, token in enumerate(tokens[:-2]):
        if token.word == "IN" and tokens[n + 1].text == "(" and tokens[n + 2].kind == "string":
            members = [t for t in tokens[n + 2 : closing(tokens, n + 1)] if t.kind == "string"]
            if len(members) > 1:
                yield members


def order_items(tokens: list[Token]) -> Iterator[list[tuple[int, int, Token]]]:
    """Yields the items of each ORDER BY: start, end and last token."""
    for n, token in enumerate(tokens[:-2]):
        if token.word == "ORDER" and tokens[n + 1].word == "BY":
            items, at = [], n + 2
            while True:
                end = _right(tokens, at, token.depth, ENDS)
                items.append((tokens[at].start, tokens[end - 1].end, tokens[end - 1]))
                if end >= len(tokens) or tokens[end].text != "," or tokens[end].depth != token.depth:
                    break
                at = end + 1
            yield items


def set_items(tokens: list[Token]) -> Iterator[SetItem]:
    """Yields the assignments of UPDATE … SET and of DO UPDATE SET."""
    for n, token in enumerate(tokens[:-3]):
        if token.word != "SET" or n == 0:
            continue
        table = "" if tokens[n - 1].word == "UPDATE" else tokens[n - 1].text.rpartition(".")[2]
        found: list[tuple[int, int]] = []
        at = n + 1
        while True:
            end = _right(tokens, at, token.depth, ENDS - {"AS", "SET"})
            found.append((at, end))
            if end >= len(tokens) or tokens[end].text != "," or tokens[end].depth != token.depth:
                break
            at = end + 1
        for i, (first, last) in enumerate(found):
            start, end = tokens[first].start, tokens[last - 1].end
            rest: Span | None = None
            if i + 1 < len(found):
                rest = (start, tokens[found[i + 1][0]].start)
            elif i:
                rest = (tokens[found[i - 1][1] - 1].end, end)
            yield SetItem(tokens[first].text, tokens[first + 1].start, tokens[first + 2].start, end, table, rest)


def statements(tokens: list[Token]) -> Iterator[Span]:
    """Yields the statements of a plpgsql body that write, lock or notify, without their semicolon."""
    for n, token in enumerate(tokens):
        first = n == 0 or tokens[n - 1].word in (";", "THEN", "ELSE", "LOOP", "BEGIN")
        if first and token.depth == 0 and token.word in ("PERFORM", "UPDATE", "INSERT", "DELETE", "WITH"):
            end = next(i for i in range(n, len(tokens)) if tokens[i].text == ";" and tokens[i].depth == 0)
            if token.word != "WITH" or any(t.word in ("INSERT", "UPDATE", "DELETE") for t in tokens[n:end]):
                yield token.start, tokens[end - 1].end
