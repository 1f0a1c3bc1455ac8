"""Terms: a replica stops trusting its term early, counts from when a beat was sent, and never loses the result of a duty."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ports.recovery import Seen
from holdfast.ports.store import Beat, TermState
from holdfast.running.terms import TERM, TRUST, Terms, stale_after

PERIODS = {"match": 1.0, "scale": 2.0, "converge": 15.0}
LOOK = settings(deadline=None, max_examples=200)


def term(duty: str = "scale", holder: str | None = "r-1", number: int = 1, expired: bool = False, idle: float = 0.0) -> TermState:
    return TermState(duty=duty, holder=holder, number=number, expired=expired, idle=idle)


def beat(*terms: TermState) -> Beat:
    return Beat(Seen(1, 1), False, list(terms))


def holding(duty: str = "scale", number: int = 1, sent: float = 100.0) -> Terms:
    terms = Terms("r-1")
    terms.took(duty, number, sent)
    return terms


def taken(terms: Terms, *states: TermState) -> dict[str, bool]:
    return {state.duty: stale for state, stale in terms.to_take(beat(*states), PERIODS)}


@LOOK
@given(sent=st.floats(0, 1e6), travel=st.floats(0, 60), later=st.floats(0, 60))
def test_trust_ends_before_the_term_does_however_long_the_call_took(sent: float, travel: float, later: float) -> None:
    """The store counts TERM from a time after the call was sent, so a replica that still trusts its term still has it."""
    terms = holding(sent=sent)
    stored_at = sent + travel
    if terms.trusted("scale", stored_at + later):
        assert stored_at + later < sent + TRUST < stored_at + TERM
    terms.stored(beat(term()), sent + 1)
    assert terms.trusted("scale", sent + 1)
    assert not terms.trusted("scale", sent + 1 + TRUST)


def test_a_beat_counts_from_when_it_was_sent_not_from_when_it_was_answered() -> None:
    terms = holding(sent=100.0)
    terms.stored(beat(term()), 105.0)
    assert terms.trusted("scale", 105.0 + TRUST - 0.01)
    assert not terms.trusted("scale", 105.0 + TRUST)


def test_beats_that_are_not_stored_renew_nothing() -> None:
    terms = holding(sent=100.0)
    terms.reports()
    assert not terms.trusted("scale", 100.0 + TRUST)


def test_nothing_is_trusted_that_was_never_taken() -> None:
    assert not Terms("r-1").trusted("scale", 0.0)


def test_a_term_that_another_took_is_lost_at_the_next_beat() -> None:
    for state in (term(holder="r-2", number=2), term(holder="r-1", number=2), term(holder=None), term("match")):
        terms = holding()
        terms.stored(beat(state), 101.0)
        assert not terms.trusted("scale", 101.0)
        assert terms.reports() == []


def test_what_a_duty_did_is_reported_again_until_it_is_stored() -> None:
    terms = holding()
    tally = terms.tally("scale")
    tally.actions, tally.skips, tally.succeeded, tally.progressed = 3, 2, True, True
    first, again = terms.reports(), terms.reports()
    assert first == again
    (report,) = first
    assert (report.duty, report.number, report.actions, report.skips, report.succeeded) == ("scale", 1, 3, 2, True)
    terms.stored(beat(term()), 101.0)
    (after,) = terms.reports()
    assert (after.actions, after.skips, after.succeeded, after.progressed) == (0, 0, False, False)


def test_a_failure_is_shown_until_a_pass_succeeds() -> None:
    terms = holding()
    terms.tally("scale").failure = "the cluster could not be asked"
    terms.stored(beat(term()), 101.0)
    assert terms.reports()[0].failure == "the cluster could not be asked"


def test_what_a_duty_did_while_its_beat_was_on_the_way_is_not_lost() -> None:
    terms = holding()
    terms.tally("scale").actions += 2
    assert terms.reports()[0].actions == 2
    tally = terms.tally("scale")
    tally.actions += 3
    tally.skips += 1
    tally.succeeded = tally.progressed = True
    terms.stored(beat(term()), 101.0)
    (report,) = terms.reports()
    assert (report.actions, report.skips, report.succeeded, report.progressed) == (3, 1, True, True)


def test_a_new_term_starts_with_a_clean_tally() -> None:
    terms = holding()
    terms.tally("scale").actions = 9
    terms.took("scale", 2, 200.0)
    assert terms.reports()[0].actions == 0
    assert terms.reports()[0].number == 2


def test_who_is_to_be_taken_over() -> None:
    table = [
        (term(holder=None), False),
        (term(holder=None, idle=1e9), False),
        (term(holder="r-2", expired=True), False),
        (term(holder="r-2", idle=stale_after(2.0) + 0.01), True),
        (term(holder="r-2", idle=-0.01), True),
        (term(holder="r-1", expired=True), False),
    ]
    for state, stale in table:
        assert taken(Terms("r-1"), state) == {"scale": stale}, state


def test_who_is_left_alone() -> None:
    for state in (term(holder="r-2"), term(holder="r-2", idle=stale_after(2.0)), term("unknown", holder=None)):
        assert taken(Terms("r-1"), state) == {}, state


@LOOK
@given(
    st.lists(
        st.builds(
            term,
            st.sampled_from([*PERIODS, "unknown"]),
            st.sampled_from([None, "r-1", "r-2"]),
            st.integers(1, 3),
            st.booleans(),
            st.floats(-1e6, 1e6),
        ),
        max_size=4,
        unique_by=lambda state: state.duty,
    ),
    st.sets(st.sampled_from(list(PERIODS))),
)
def test_what_we_hold_is_never_to_be_taken_and_all_that_lies_idle_is(states: list[TermState], held: set[str]) -> None:
    terms = Terms("r-1")
    for duty in held:
        terms.took(duty, 1, 0.0)
    found = taken(terms, *states)
    assert not held & found.keys()
    for state in states:
        if state.duty in PERIODS and state.duty not in held:
            free = state.holder is None or state.expired
            stale = not 0 <= state.idle <= stale_after(PERIODS[state.duty])
            assert (state.duty in found) == (free or stale)
            if state.duty in found:
                assert found[state.duty] == (not free)
