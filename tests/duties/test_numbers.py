"""Numbers that hang together: the failure table's bounds, and pauses, periods and patience that must fit into them."""

import re

import pytest

from holdfast.agent.activation import PROGRESS_SECONDS
from holdfast.api.agents import POLL_SECONDS
from holdfast.duties import cases, converge, deadlines, scale
from holdfast.duties.match import MatchDuty
from holdfast.duties.pools import Pools
from holdfast.duties.prune import KEEP_DAYS, Prune
from holdfast.engine import handover
from holdfast.engine.hints import DUE_PERIOD
from holdfast.engine.terms import BEAT, TERM, TRUST, stale_after
from holdfast.model.claim import KEY_HOURS, MAX_LOST_RETRIES
from holdfast.model.duration import seconds
from holdfast.model.pool import PoolSpec
from holdfast.postgres.claims import DUE
from holdfast.postgres.history import OUTPUTS, PRUNE
from holdfast.postgres.rendering import functions_text
from holdfast.recovery import compare

CONVERGE, DEADLINES, SCALE = converge.Converge.period, deadlines.Deadlines.period, scale.Scale.period
TRIES = handover.TRIES * handover.TRY_SECONDS + (handover.TRIES - 1) * handover.PAUSE
START_TIMEOUT = seconds(PoolSpec().start_timeout)
LEASE = seconds(PoolSpec().claim.lease)

# The failure table's row, the longest time until our own passes act on it, and the bound that the table promises.
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


def test_the_store_shows_hand_overs_as_soon_as_they_may_stall() -> None:
    looked_at = re.search(r"progress_heard <= clock.h - interval '(\d+) s'", DUE)
    assert looked_at
    assert float(looked_at[1]) <= min(deadlines.OFFER_STALL, deadlines.DELIVER_STALL, deadlines.ACTIVATE_STALL)


def test_the_look_between_two_passes_asks_for_what_the_pass_would_find() -> None:
    """Numbers of the same name in SQL: a worker that is due by one and not by the other would be read for nothing."""
    between = functions_text().partition("due_workers()")[2].partition("$$;")[0]
    assert f"w.state_heard < clock.h - interval '{cases.SPAWN_LOOK:.0f} s'" in between
    assert f"w.state_heard) < clock.h - interval '{cases.SILENT:.0f} s'" in between


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


def test_keys_and_outputs_are_remembered_for_the_hours_that_the_model_names() -> None:
    assert f"interval '{KEY_HOURS} h'" in PRUNE["keys"]
    assert f"interval '{KEY_HOURS} h'" in OUTPUTS


def test_lost_claims_are_retried_as_often_as_the_model_says() -> None:
    assert re.findall(r"losses < (\d+)", functions_text()) == [str(MAX_LOST_RETRIES)]


def test_a_pool_may_start_its_warm_workers_within_its_start_timeout() -> None:
    assert START_TIMEOUT > cases.SPAWN_LOOK + 2 * CONVERGE


def test_a_default_lease_survives_a_few_missed_renewals_and_a_take_over() -> None:
    assert LEASE >= 3 * TERM
