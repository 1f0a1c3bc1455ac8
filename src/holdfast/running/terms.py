"""Terms: which replica runs which duty now. A replica stops trusting its own term before others may take it, never after."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..ports.store import Beat, DutyReport, TermState

TERM = 10.0  # seconds; with one beat per second, nine beats may fail before it runs out
TRUST = TERM - 2.0  # the holder stops 2 s before other replicas may take the term
BEAT = 1.0


def stale_after(period: float) -> float:
    """Returns after how many seconds without progress a duty is taken over (failure table: 3 periods + 5 s)."""
    return 3 * period + 4.0  # the beat that notices it adds the fifth second


@dataclass
class Tally:
    """What a duty did since the last beat that was stored."""

    progressed: bool = False
    succeeded: bool = False
    seconds: float | None = None
    actions: int = 0
    skips: int = 0
    failure: str | None = None


def _sum(before: Tally | None, after: Tally) -> Tally:
    if before is None:
        return after
    return Tally(
        before.progressed or after.progressed,
        before.succeeded or after.succeeded,
        after.seconds if after.seconds is not None else before.seconds,
        before.actions + after.actions,
        before.skips + after.skips,
        after.failure,
    )


@dataclass
class Terms:
    """This replica's view of its terms: their numbers, and until when it may trust them, by its own monotonic clock."""

    replica: str
    held: dict[str, tuple[int, float]] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    _sent: dict[str, Tally] = field(default_factory=dict)  # sent in a beat that is not known to be stored

    def trusted(self, duty: str, now: float) -> bool:
        number_until = self.held.get(duty)
        return number_until is not None and now < number_until[1]

    def took(self, duty: str, number: int, sent: float) -> None:
        self.held[duty] = (number, sent + TRUST)
        self.tallies[duty] = Tally()

    def tally(self, duty: str) -> Tally:
        return self.tallies.setdefault(duty, Tally())

    def reports(self) -> list[DutyReport]:
        """Returns the reports for the next beat: what happened since the last stored beat. What happens while the beat is being
        sent belongs to the one after it."""
        self._sent = {duty: _sum(self._sent.get(duty), self.tally(duty)) for duty in self.held}
        self.tallies = {duty: Tally(failure=tally.failure) for duty, tally in self._sent.items()}
        return [
            DutyReport(
                duty=duty,
                number=self.held[duty][0],
                progressed=t.progressed,
                succeeded=t.succeeded,
                seconds=t.seconds,
                actions=t.actions,
                skips=t.skips,
                failure=t.failure,
            )
            for duty, t in self._sent.items()
        ]

    def stored(self, beat: Beat, sent: float) -> None:
        """Extends the terms that this replica still holds after a stored beat, counted from when the beat was *sent*, and drops
        the others."""
        self._sent = {}
        mine = {t.duty: t.number for t in beat.terms if t.holder == self.replica}
        for duty in list(self.held):
            if mine.get(duty) == self.held[duty][0]:
                self.held[duty] = (mine[duty], sent + TRUST)
            else:
                del self.held[duty]

    def to_take(self, beat: Beat, periods: dict[str, float]) -> Iterable[tuple[TermState, bool]]:
        """Yields the terms that this replica may take, and whether only because their holder makes no progress."""
        for term in beat.terms:
            if term.duty not in periods or term.duty in self.held:
                continue
            if term.holder is None or term.expired:
                yield term, False
            elif term.idle > stale_after(periods[term.duty]) or term.idle < 0:
                yield term, True
