"""Numbers that depend on each other: the limits of the failure table, and the pauses, periods and timeouts that must fit in."""

import pytest

from holdfast.agent.activation import PROGRESS_SECONDS
from holdfast.api.agents import POLL_SECONDS
from holdfast.claimpath import protection
from holdfast.duties import cases, converge, deadlines, scale
from holdfast.duties.match import MatchDuty
from holdfast.duties.pools import Pools
from holdfast.duties.prune import KEEP_DAYS, Prune
from holdfast.model.claim import KEY_HOURS
from holdfast.model.duration import seconds
from holdfast.model.pool import PoolSpec
from holdfast.recovery import compare
from holdfast.running.looks import DUE_PERIOD
from holdfast.running.terms import BEAT, TERM, TRUST, stale_after

CONVERGE, DEADLINES, SCALE = converge.Converge.period, deadlines.Deadlines.period, scale.Scale.period
TRIES = protection.TRIES * protection.TRY_SECONDS + (protection.TRIES - 1) * protection.PAUSE
START_TIMEOUT = seconds(PoolSpec().start_timeout)
LEASE = seconds(PoolSpec().claim.lease)

# The row of the failure table, the longest time until a pass acts on it, and the limit that the table promises.
BOUNDS = [
    ("replica dies before hand-over, another does its duty", deadlines.OFFER_STALL + DEADLINES, 15),
    ("replica dies before hand-over, and it had the duty", TERM + BEAT + DEADLINES, 15),
    ("replica dies holding duties", TERM + BEAT, 15),
    ("spawn outcome unknown", cases.SPAWN_LOOK + DUE_PERIOD, 15),
    ("worker silent 60 s", cases.SILENT + DUE_PERIOD, 60 + 5),
    ("scheduled, never ready", START_TIMEOUT + DUE_PERIOD, START_TIMEOUT + 5),
    ("protection patch failed, the API server is back", DUE_PERIOD, 5),
    ("activation hangs", deadlines.ACTIVATE_STALL + DEADLINES, 15),
    ("our pod without a row", cases.ORPHAN_GRACE + CONVERGE, 60),
    ("row without a pod", 3 * CONVERGE, 90),
    ("stamped pod, no live claim", CONVERGE, 60),
    ("holder of a leased claim vanished", LEASE + DEADLINES, LEASE + 5),
    ("parked past its TTL", SCALE, 10),
    ("pool deleted, after its last claim", SCALE + Pools.period, 10),
    ("database restored", compare.LISTEN + CONVERGE, 60),
]


@pytest.mark.parametrize(("row", "ours", "bound"), BOUNDS, ids=[row for row, _, _ in BOUNDS])
def test_the_failure_tables_bound_holds_without_any_notice_from_outside(row: str, ours: float, bound: float) -> None:
    assert ours <= bound, f"{row}: acted on after up to {ours} s, promised within {bound} s"


@pytest.mark.parametrize("duty", [MatchDuty, deadlines.Deadlines, converge.Converge, scale.Scale, Pools, Prune])
def test_a_duty_that_stands_still_is_taken_over_after_three_periods_and_five_seconds(duty: type) -> None:
    period: float = duty.period  # type: ignore[attr-defined]
    assert stale_after(period) + BEAT <= 3 * period + 5
    assert stale_after(period) > 2 * period, "one slow pass is not standing still"


def test_trust_in_a_term_ends_before_the_term_and_outlives_several_lost_beats() -> None:
    assert TRUST < TERM
    assert TRUST >= 3 * BEAT
    assert TERM - TRUST >= 2 * BEAT, "a beat in flight must not make the difference"


def test_a_live_replica_has_finished_its_tries_before_another_takes_the_hand_over_up() -> None:
    assert TRIES < deadlines.OFFER_STALL


def test_both_steps_of_a_broken_hand_over_fit_into_its_bound() -> None:
    assert deadlines.OFFER_STALL + deadlines.DELIVER_STALL <= 15


def test_silence_is_three_missed_polls_at_least() -> None:
    assert cases.SILENT >= 3 * POLL_SECONDS


def test_recovery_listens_longer_than_a_poll_takes() -> None:
    assert compare.LISTEN > POLL_SECONDS


def test_an_orphan_is_older_than_a_spawn_of_unknown_outcome() -> None:
    assert cases.ORPHAN_GRACE > cases.SPAWN_LOOK


def test_activation_may_miss_some_reports() -> None:
    assert deadlines.ACTIVATE_STALL >= 3 * PROGRESS_SECONDS


def test_history_is_kept_longer_than_a_claim_may_last_and_its_key_is_remembered() -> None:
    longest = PoolSpec(mode="session").max_duration / 3600
    assert longest == 24
    assert longest + KEY_HOURS < KEEP_DAYS * 24


def test_a_pool_may_start_its_warm_workers_within_its_start_timeout() -> None:
    assert START_TIMEOUT > cases.SPAWN_LOOK + 2 * CONVERGE


def test_a_default_lease_survives_a_few_missed_renewals_and_a_take_over() -> None:
    assert LEASE >= 3 * TERM
