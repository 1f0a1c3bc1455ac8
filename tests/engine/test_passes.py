"""One pass of a duty, as its replica tells the store of it."""

import asyncio
from typing import Any, cast

import pytest

from holdfast.duties.actions import Action
from holdfast.duties.duty import Ports
from holdfast.engine.metrics import Metrics
from holdfast.engine.passes import Passes
from holdfast.engine.terms import Terms
from holdfast.ports.cluster import ClusterUnavailable
from holdfast.ports.recovery import Seen
from holdfast.ports.store import Beat, StoreUnavailable, TermState

NOBODY = cast(Any, None)


def holding() -> Terms:
    terms = Terms("r-1")
    terms.took("sweep", 1, 0.0)
    return terms


class Sweep:
    """A duty whose reads take so long that a beat is stored meanwhile."""

    name = "sweep"
    period = 1.0

    def __init__(self, terms: Terms, error: Exception | None = None, beats: int = 1) -> None:
        self._terms, self._error, self._beats = terms, error, beats

    async def observe(self, _ports: Ports) -> None:
        for sent in range(self._beats):
            self._terms.reports()
            mine = TermState(duty="sweep", holder="r-1", number=1, expired=False, idle=0.0)
            self._terms.stored(Beat(Seen(1, 1), False, [mine]), float(sent))
        if self._error:
            raise self._error

    def plan(self, _seen: None) -> list[Action]:
        return []


def swept(terms: Terms, error: Exception | None, beats: int) -> list[Action]:
    passes = Passes(Ports(NOBODY, NOBODY), NOBODY, terms, Metrics(), lambda _names: None)
    return asyncio.run(passes.run_once(Sweep(terms, error, beats)))


@pytest.mark.parametrize("beats", [0, 1, 3])
@pytest.mark.parametrize("error", [ClusterUnavailable("the cluster is away"), StoreUnavailable("the store is away")], ids=repr)
def test_a_pass_that_could_not_read_is_told_as_a_skip_with_its_reason_also_if_it_took_long(error: Exception, beats: int) -> None:
    terms = holding()
    assert swept(terms, error, beats) == []
    (report,) = terms.reports()
    assert (report.skips, report.failure, report.succeeded) == (1, str(error), False)


@pytest.mark.parametrize("beats", [0, 1, 3])
def test_a_pass_that_could_read_is_told_as_a_success_also_if_it_took_long(beats: int) -> None:
    terms = holding()
    terms.tally("sweep").failure = "before"
    swept(terms, None, beats)
    (report,) = terms.reports()
    assert (report.skips, report.failure, report.succeeded, report.progressed) == (0, None, True, True)
    assert report.seconds is not None
