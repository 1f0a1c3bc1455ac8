"""The checks after lost commits: a request that was on its way is not a decision under a live claim."""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.sim import checks as module
from holdfast.sim.book import Book, Broken
from holdfast.sim.checks import Checks
from holdfast.sim.tables import Tables, WorkerRow

HELD = WorkerRow("w-1", "p-1", "held", 3, "c-1", "ann", 5, "uid-1", None, usable=False, delivered=True)
POD: Any = SimpleNamespace(name="w-1", uid="uid-1", install="i-1", stamp=None, result=None, phase="ended")


def _tables(*workers: WorkerRow) -> Tables:
    return Tables({row.id: row for row in workers}, {}, [], [], [], {}, None, 1, recovering=False)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """The worker was buried a while ago. The database that is put in place shows it as held by a live claim."""
    live = [("uid-1", "c-1", 5, "active")]
    gate: Any = SimpleNamespace(postgres=SimpleNamespace(ask=lambda *_: live), clock=lambda: 0.0)
    world: Any = SimpleNamespace(on_effect=[], pods={})
    monkeypatch.setattr(module, "look", lambda *_: _tables(HELD))
    found = Checks(gate, world, Book(), "i-1", lambda: 0.0)
    found.before = _tables()
    found._gone.add("w-1")
    return found


def test_a_record_whose_removal_was_on_its_way_when_commits_were_lost_may_be_removed(checks: Checks) -> None:
    checks.rewound()
    checks.effect("forget", POD)
    assert checks.before == _tables(HELD)


def test_a_record_is_not_removed_under_a_live_claim(checks: Checks) -> None:
    with pytest.raises(Broken, match="the record of w-1 is removed while c-1 is active"):
        checks.effect("forget", POD)
