"""The result of one call of the command line, and the type of the fixture that makes such calls."""

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Result]
