"""Print a job's output: each piece goes to the caller's stream of the same name, in order of arrival."""

import sys
from typing import TYPE_CHECKING

from holdfast.model.output import missing_line

from .connection import print_message

if TYPE_CHECKING:
    from holdfast.client import OutputPiece


class OutputPrinter:
    def __init__(self, claim: str) -> None:
        self._claim = claim
        self._last = b""  # the last byte on stdout
        self._kept: int | None = None  # bytes of an output whose end is lost

    def print(self, piece: "OutputPiece") -> None:
        """Prints one piece. The line about missing bytes goes to stdout, because a reader of stdout must not take what follows
        for what comes next."""
        data = missing_line(piece.missing, self._last) if piece.missing else piece.data
        stream = sys.stderr if piece.stream == "stderr" and not piece.missing else sys.stdout
        stream.buffer.write(data)
        stream.buffer.flush()
        if stream is sys.stdout:
            self._last = data[-1:]

    def truncated(self, kept: int, missing: int) -> None:
        """Remembers that the end of the output was lost. Where bytes are missing in the middle, a line is printed there."""
        if not missing:
            self._kept = kept

    def finish(self) -> None:
        """Prints that the end was lost, after the output, where the user sees it."""
        if self._kept is not None:
            print_message(f"the output of claim {self._claim} was truncated: only its first {self._kept} bytes were kept")
