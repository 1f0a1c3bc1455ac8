"""Keep the end of what a worker wrote, as text that may be shown: without secrets and without control characters."""

import re
from collections.abc import Iterable

from ..model.shown import shown_lines

MARGIN = 64 * 1024  # bytes that are kept in front of the end, so that a secret is never cut in two before it is removed
SHORTEST_HIDDEN = 4  # characters; a shorter value occurs by chance, and what was replaced would then show the value
HIDDEN = "***"
LAST_OUTPUT = 2048  # characters of a process's output that the report of its failure carries
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")  # colours and movements of a terminal


class Tail:
    """The last `limit` characters of what was written."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._cut = False

    def write(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * (self._limit + MARGIN):
            del self._data[: -(self._limit + MARGIN)]
            self._cut = True

    def text(self, secrets: Iterable[str]) -> str:
        """Returns the end in whole lines, with each of the secrets replaced."""
        secrets = list(secrets)
        text = ESCAPES.sub("", hidden(self._data.decode(errors="replace"), secrets))
        text = shown_lines(text.replace("\r", ""))
        text = hidden(text, secrets)  # again, because a value may have had colours inside
        if len(text) <= self._limit and not self._cut:
            return text
        end = text[-self._limit :]
        first, newline, rest = end.partition("\n")
        return rest if newline and rest else first


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Returns the text with each secret replaced, also with each line of a secret of several lines. Lines that contain a very
    short secret are left out."""
    values = {value for secret in secrets for value in (secret, *secret.splitlines()) if value}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST_HIDDEN:
            text = text.replace(value, HIDDEN)
        else:
            text = "".join(line for line in text.splitlines(keepends=True) if value not in line)
    return text
