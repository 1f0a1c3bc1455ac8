"""One pass of a duty, and what its replica reports about it to the store."""

import asyncio
import contextlib
from typing import Any, cast

import pytest

import holdfast.running.passes as passes_module
from holdfast.claimpath.signals import Signals
from holdfast.duties.actions import Action
from holdfast.duties.duty import Ports
from holdfast.metrics import Metrics
from holdfast.model.effect import Done
from holdfast.ports.cluster import ClusterUnavailable
from holdfast.ports.recovery import Seen
from holdfast.ports.store import Beat, StoreUnavailable, TermState
from holdfast.running.passes import Passes
from holdfast.running.terms import Terms

UNUSED = cast(Any, None)


def holding() -> Terms:
    terms = Terms("r-1")
    terms.took("sweep", 1, 0.0)
    return terms


class Sweep:
    """A duty whose reads take so long that a beat is stored in the meantime."""

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


async def swept(terms: Terms, error: Exception | None, beats: int) -> list[Action]:
    passes = Passes(Ports(UNUSED, UNUSED), UNUSED, terms, Metrics(), Signals())
    return await passes.run_once(Sweep(terms, error, beats))


@pytest.mark.parametrize("beats", [0, 1, 3])
@pytest.mark.parametrize("error", [ClusterUnavailable("the cluster is away"), StoreUnavailable("the store is away")], ids=repr)
async def test_a_pass_that_could_not_read_is_reported_as_a_skip_with_its_reason_also_if_it_took_long(
    error: Exception, beats: int
) -> None:
    terms = holding()
    assert await swept(terms, error, beats) == []
    (report,) = terms.reports()
    assert (report.skips, report.failure, report.succeeded) == (1, str(error), False)


@pytest.mark.parametrize("beats", [0, 1, 3])
async def test_a_pass_that_could_read_is_reported_as_a_success_also_if_it_took_long(beats: int) -> None:
    terms = holding()
    terms.tally("sweep").failure = "before"
    await swept(terms, None, beats)
    (report,) = terms.reports()
    assert (report.skips, report.failure, report.succeeded, report.progressed) == (0, None, True, True)
    assert report.seconds is not None


class Never:
    """An action type for this test, whose handler ignores its cancellation."""


async def stubborn(_action: object) -> Done:
    """Applies an action so slowly that the pass exceeds its time, and ignores the cancellation."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return Done()


async def test_a_pass_that_runs_out_of_time_in_an_action_that_swallows_the_cancellation_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes_module, "stale_after", lambda _period: 0.05)

    class Busy(Sweep):
        def plan(self, _seen: None) -> list[Action]:
            return [cast(Action, Never()), cast(Action, Never())]

    terms = holding()
    passes = Passes(Ports(UNUSED, UNUSED), cast(Any, stubborn), terms, Metrics(), Signals())
    assert await passes.run_once(Busy(terms, None, 0)) == []
    (report,) = terms.reports()
    assert (report.skips, report.succeeded, report.failure) == (1, False, "the pass made no progress and was stopped")
