"""The names of a command's two streams, and the line that stands for output that is not kept."""

from typing import Literal

Stream = Literal["stdout", "stderr"]


def missing_line(count: int, last: bytes) -> bytes:
    """Returns the line that stands for `count` missing bytes. `last` is the byte before it, or empty at the beginning."""
    begin = b"" if last in (b"", b"\n") else b"\n"
    return begin + f"[holdfast: {count} bytes are missing here; only the beginning and the end of an output are kept]\n".encode()
