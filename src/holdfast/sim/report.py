"""Describe what a run found, so that a person can act on it."""

import shutil

from .run import RunResult

LAST = 40  # lines of the trace


def describe(result: RunResult, shorter: RunResult | None = None) -> str:
    """Returns the description of a failing run: seed, step, promise, the faults that matter, and the last events."""
    assert result.failure is not None
    shown = shorter if shorter is not None and shorter.failure is not None else result
    assert shown.failure is not None
    rule = "─" * min(100, shutil.get_terminal_size((100, 24)).columns)
    events = [line for line in shown.lines if not line[11:].startswith("sql")]
    cut = f"{len(shown.faults)} of {len(result.faults)} faults are enough" if shorter is not None else "its faults"
    return "\n".join(
        [
            rule,
            f"seed {result.seed} breaks {result.failure.promise} at {result.failure.at:.3f} s (step {len(result.lines)})",
            f"  {result.failure.what}",
            f"{cut}:",
            *(f"  {fault}" for fault in shown.faults),
            f"the last events{' of the shorter run' if shorter is not None else ''}:",
            *(f"  {line}" for line in events[-LAST:]),
            f"again: make sim SEED={result.seed}",
            rule,
        ]
    )
