"""The type of the functions that cause a fault."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..faults import Fault

if TYPE_CHECKING:
    from ..chaos import Chaos

Cause = Callable[["Chaos", Fault], None]
