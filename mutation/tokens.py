"""Splits SQL and plpgsql into tokens with their places, so that a mutation can replace exactly one of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

PATTERN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<string>'(?:[^']|'')*')
  | (?P<word>[A-Za-z_@]\w*(?:\.\w+)*|\$\d+|\{\w+\})
  | (?P<number>\d+(?:\.\d+)?)
  | (?P<op>:=|=>|::|<=|>=|<>|<<|>>|->>|\#>>|->|\|\||[^\s\w])
    """,
    re.VERBOSE,
)

OPENS, CLOSES = ("(", "["), (")", "]")


@dataclass(frozen=True)
class Token:
    """`text` as it is written, at `start` of the source. `depth` counts the brackets around it."""

    text: str
    kind: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """Returns the text in upper case for keywords and names, and unchanged for everything else."""
        return self.text.upper() if self.kind == "word" else self.text


def tokens_of(text: str, start: int = 0, end: int | None = None) -> list[Token]:
    """Returns the tokens between two places of a text, without spaces and comments. Places are those of the whole text."""
    return list(_scan(text, start, len(text) if end is None else end))


def _scan(text: str, start: int, end: int) -> Iterator[Token]:
    depth = 0
    place = start
    while place < end:
        match = PATTERN.match(text, place, end)
        if match is None:  # a character that SQL does not know, for example half of a string
            place += 1
            continue
        place, kind, found = match.end(), match.lastgroup or "", match.group()
        if kind == "space":
            continue
        if found in CLOSES:
            depth -= 1
        yield Token(found, kind, match.start(), depth)
        if found in OPENS:
            depth += 1


def closing(tokens: list[Token], at: int) -> int:
    """Returns the index of the bracket that closes the one at this index."""
    depth = tokens[at].depth
    for n in range(at + 1, len(tokens)):
        if tokens[n].depth == depth and tokens[n].text in CLOSES:
            return n
    return len(tokens)
