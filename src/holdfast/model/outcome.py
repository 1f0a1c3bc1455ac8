"""How an attempt went, as a value: expected is a value, wrong is an exception, impossible is an assert."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Done:
    """It happened, exactly once."""


@dataclass(frozen=True)
class Stale:
    """The row is no longer what the plan saw. Nothing happened; look again."""


@dataclass(frozen=True)
class Skipped:
    """Something above the plan forbids it for now. Nothing happened."""

    by: Literal["frozen", "braked", "recovering", "unsure"]


@dataclass(frozen=True)
class Failed:
    """It was tried and did not work; the next pass tries again."""

    reason: str


Outcome = Done | Stale | Skipped | Failed


def outcome_of(word: str) -> Outcome:
    """The outcome that a guarded statement answered."""
    if word == "done":
        return Done()
    if word == "stale":
        return Stale()
    assert word in ("frozen", "braked", "recovering"), word
    return Skipped(word)  # type: ignore[arg-type]
