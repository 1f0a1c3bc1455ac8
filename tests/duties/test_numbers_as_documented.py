"""Names, periods and timeouts of the duties are as documented, because a change is a change for operators."""

import pytest

from holdfast.duties import cases, deadlines, observed, prune, scale
from holdfast.duties.converge import Converge
from holdfast.duties.match import MatchDuty
from holdfast.duties.pools import Pools
from holdfast.recovery import compare

DUTIES = [
    (MatchDuty, "match", 1.0),
    (deadlines.Deadlines, "deadlines", 2.0),
    (Converge, "converge", 15.0),
    (scale.Scale, "scale", 2.0),
    (Pools, "pools", 5.0),
    (prune.Prune, "prune", 600.0),
]


@pytest.mark.parametrize(("duty", "name", "period"), DUTIES, ids=[name for _, name, _ in DUTIES])
def test_a_duty_has_the_name_of_its_term_and_the_period_of_the_docs(duty: type, name: str, period: float) -> None:
    """Terms are rows with these names. Under another name a duty would never get its term (P6)."""
    assert (duty.name, duty.period) == (name, period)  # type: ignore[attr-defined]


NUMBERS = {
    "a worker is silent after a minute": (cases.SILENT, 60.0),
    "a row without a pod is looked up after 5 s": (cases.SPAWN_LOOK, 5.0),
    "a pod that should end is asked again after 30 s": (cases.ASK_AGAIN, 30.0),
    "a retiring pod has at most 30 s": (cases.RETIRING_GRACE, 30.0),
    "a stamp is young for 2 s": (cases.STAMP_GRACE, 2.0),
    "an orphan has 45 s before it goes": (cases.ORPHAN_GRACE, 45.0),
    "a hand-over that was not offered is taken up after 4 s": (deadlines.OFFER_STALL, 4.0),
    "a hand-over that was not fetched goes elsewhere after 6 s": (deadlines.DELIVER_STALL, 6.0),
    "an activation without progress is given up after 12 s": (deadlines.ACTIVATE_STALL, 12.0),
    "a pass ends at most 500 claims": (deadlines.BATCH, 500),
    "30 s pass between two steps down": (scale.COOLDOWN, 30.0),
    "4 workers may start at once in a small pool": (scale.STARTING_FLOOR, 4),
    "a quarter of max may start at once in a large pool": (scale.STARTING_SHARE, 0.25),
    "an action makes at most 8 pods": (scale.SLICE, 8),
    "a pass makes at most 4 slices of pods": (scale.SLICES, 4),
    "recovery listens for 30 s": (compare.LISTEN, 30.0),
    "an output is kept for a day": (prune.OUTPUT_SECONDS, 86_400.0),
    "history is kept for a week": (prune.KEEP_DAYS, 7),
    "a view is planned in slices of 500 workers": (observed.PART, 500),
}


@pytest.mark.parametrize("sentence", NUMBERS)
def test_the_number_is_the_documented_one(sentence: str) -> None:
    number, documented = NUMBERS[sentence]
    assert number == documented
