"""One pass of a duty: observe, plan, apply, and record the result for the next beat."""

import asyncio
from dataclasses import dataclass, field

import structlog

from ..claimpath.signals import Signals
from ..duties.actions import Action
from ..duties.duty import Duty, Parted, Ports
from ..metrics import Metrics
from ..model.effect import Done, Failed, Skipped
from ..ports.cluster import ClusterUnavailable
from ..ports.store import StoreUnavailable
from .apply import Apply
from .terms import Terms, stale_after

log = structlog.get_logger()

SLICE = 200  # actions that are applied before the event loop serves requests again


@dataclass
class Applied:
    """The result of a plan."""

    done: list[Action] = field(default_factory=list)  # the actions that took effect
    failures: int = 0
    why: str | None = None  # the reason of the last failure


class Passes:
    def __init__(self, ports: Ports, apply: Apply, terms: Terms, metrics: Metrics, signals: Signals) -> None:
        self._ports = ports
        self._apply = apply
        self._terms = terms
        self._metrics = metrics
        self._signals = signals

    async def run_once(self, duty: Duty) -> list[Action]:
        """Runs one pass and returns the actions that took effect. A pass succeeds only if its reads succeed and its actions do
        not all fail. A pass without progress is stopped, because otherwise one call without an answer would stop the duty
        forever."""
        tally, started = self._terms.tally(duty.name), _now()
        try:
            async with asyncio.timeout(stale_after(duty.period)) as patience:
                seen = await duty.observe(self._ports)
                actions = []
                for part in seen.parts() if isinstance(seen, Parted) else (seen,):
                    actions += duty.plan(part)
                    await asyncio.sleep(0)
                tally.progressed = True
                applied = await self.do(duty, actions, patience)
        except (TimeoutError, StoreUnavailable, ClusterUnavailable) as error:
            tally = self._terms.tally(duty.name)
            tally.skips += 1
            tally.failure = str(error) or "the pass made no progress and was stopped"
            if isinstance(error, ClusterUnavailable):
                self._metrics.cluster_errors.inc()
            return []
        tally = self._terms.tally(duty.name)
        tally.succeeded = not applied.failures or bool(applied.done)
        tally.progressed, tally.failure = True, applied.why
        tally.seconds = _now() - started
        return applied.done

    async def do(self, duty: Duty, actions: list[Action], patience: asyncio.Timeout | None = None) -> Applied:
        """Applies a plan. Two replicas that apply the same plan waste work but do no harm, because every action is guarded."""
        applied = Applied()
        for n, action in enumerate(actions):
            effect = await self._apply(action)
            if patience is not None:
                if patience.expired():
                    # The action swallowed the cancellation that the timeout sent, so the pass has to be ended here.
                    raise TimeoutError
                patience.reschedule(_now() + stale_after(duty.period))
            tally = self._terms.tally(duty.name)
            tally.progressed = True
            tally.skips += isinstance(effect, Skipped)
            if isinstance(effect, Done):
                tally.actions += 1
                applied.done.append(action)
                name = getattr(action, "worker", None) or getattr(action, "name", None)
                if duty.name != "converge" and isinstance(name, str):
                    self._signals.workers.changed(name)  # so that `converge` looks at it now, not in its next full pass
            if isinstance(effect, Failed):
                applied.failures, applied.why = applied.failures + 1, effect.reason
                log.warning("action failed", duty=duty.name, action=type(action).__name__, reason=effect.reason)
            if n % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        return applied


def _now() -> float:
    return asyncio.get_running_loop().time()
