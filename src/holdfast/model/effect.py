"""The effect of an action, as a value. An expected effect is a value, an error an exception, the impossible an assert."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Done:
    """The action took effect, exactly once."""


@dataclass(frozen=True)
class Stale:
    """The row has changed since the plan read it. Nothing happened; the next pass reads it again."""


@dataclass(frozen=True)
class Skipped:
    """A freeze, the brake, a recovery, missing proof or a busy agent forbids the action for now. Nothing happened."""

    by: Literal["frozen", "braked", "recovering", "unsure", "busy"]


@dataclass(frozen=True)
class Failed:
    """The action was tried and failed. The next pass tries again."""

    reason: str


Effect = Done | Stale | Skipped | Failed


def effect_of(answer: str) -> Effect:
    """Returns the effect for what a guarded statement returned."""
    if answer == "done":
        return Done()
    if answer == "stale":
        return Stale()
    assert answer in ("frozen", "braked", "recovering", "busy"), answer
    return Skipped(answer)  # type: ignore[arg-type]
