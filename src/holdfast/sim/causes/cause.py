"""The type of the functions that cause a fault."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..faults import Fault
from ..moments import Target

if TYPE_CHECKING:
    from ..chaos import Chaos

Cause = Callable[["Chaos", Fault, Target], None]
