"""What the command line said, and how tests call it."""

from collections.abc import Callable
from typing import NamedTuple


class Said(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Said]
