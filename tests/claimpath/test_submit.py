"""A request is stored with its pool's next batch and is sent again when the store does not answer. Each caller is answered."""

import asyncio

import pytest
import structlog.testing

from claimpath.recorded_store import Path, make_claim, make_pair, make_pool
from holdfast.claimpath.path import BATCH, LOOK_AGAIN, OFFERS, UNKNOWN_TRIES, YIELD_SECONDS, Submitted
from holdfast.ports.store import StoreUnavailable
from postgres.store_steps import ask
from virtual_time import on_virtual_time, passed, settle

DONE = ("active", "ended")


def test_the_numbers_of_the_claim_path_are_the_documented_ones() -> None:
    assert (BATCH, OFFERS, UNKNOWN_TRIES, LOOK_AGAIN, YIELD_SECONDS) == (128, 10_000, 3, 3.0, 0.5)


@pytest.mark.parametrize("what", ["closed", "other"])
def test_a_request_that_was_not_stored_is_answered_at_once_and_without_a_claim(what: str) -> None:
    async def main() -> None:
        on, new = Path(), ask()
        on.claims.answers[new.id] = (what, "c-other")  # type: ignore[assignment]
        on.change("c-other", "active")
        assert await on.path.submit(on.pool, new, DONE, 20.0) == (Submitted("c-other", what), None)  # type: ignore[arg-type]
        assert passed() == 0
        assert on.claims.reads == []

    on_virtual_time(main())


def test_a_request_that_the_store_does_not_mention_was_sent_to_a_closed_pool() -> None:
    async def main() -> None:
        on, new = Path(), ask()
        on.claims.answers[new.id] = None
        assert await on.path.submit(on.pool, new, DONE, 20.0) == (Submitted(new.id, "closed"), None)

    on_virtual_time(main())


def test_the_same_request_again_gets_the_claim_that_stands_for_it() -> None:
    async def main() -> None:
        on, new = Path(), ask()
        on.claims.answers[new.id] = ("same", "c-first")
        first = on.change("c-first", "active")
        on.change(new.id, "waiting")
        assert await on.path.submit(on.pool, new, DONE, 20.0) == (Submitted("c-first", "same"), first)
        assert passed() == 0

    on_virtual_time(main())


def test_a_request_without_time_to_wait_returns_its_claim_as_it_is() -> None:
    async def main() -> None:
        on, new = Path(), ask()
        row = on.change(new.id, "waiting")
        assert await on.path.submit(on.pool, new, DONE, 0.0) == (Submitted(new.id, "new"), row)
        assert (passed(), on.claims.reads) == (0, ["get"])

    on_virtual_time(main())


def test_the_batch_is_sent_for_its_own_pool_and_within_the_limit() -> None:
    async def main() -> None:
        on, new, other = Path(), ask(), ask()
        await on.path.submit(on.pool, new, DONE, 0.0)
        await on.path.submit(make_pool(name="mac"), other, DONE, 0.0)
        assert on.claims.matches == [("p-linux", [new.id], BATCH), ("p-mac", [other.id], BATCH)]

    on_virtual_time(main())


def test_a_pool_that_is_not_used_any_more_is_forgotten() -> None:
    async def main() -> None:
        on = Path()
        for name in ("a", "b", "c"):
            await on.path.submit(make_pool(name=name), ask(), DONE, 0.0)
            await settle()
        assert set(on.path._requests) == set(on.path._pools) == {"p-c"}

    on_virtual_time(main())


def test_a_pool_whose_batch_is_in_progress_is_not_forgotten_for_another() -> None:
    async def main() -> None:
        on, first, second = Path(), ask(), ask()
        on.claims.gates[on.pool.id] = asyncio.Event()
        one = asyncio.create_task(on.path.submit(on.pool, first, DONE, 0.0))
        await settle()
        await on.path.submit(make_pool(name="mac"), ask(), DONE, 0.0)
        two = asyncio.create_task(on.path.submit(on.pool, second, DONE, 0.0))
        await settle()
        assert [new for pool, new, _ in on.claims.matches if pool == on.pool.id] == [[first.id]], "the second waits its turn"
        on.claims.gates[on.pool.id].set()
        assert [(await each)[0].claim for each in (one, two)] == [first.id, second.id]

    on_virtual_time(main())


@pytest.mark.parametrize("times", [[0.0, 0.2], [0.0, 0.2, 0.4]])
def test_a_batch_of_unknown_outcome_is_sent_again_after_a_pause_with_the_same_ids(times: list[float]) -> None:
    async def main() -> None:
        on, new = Path(), ask()
        on.claims.errors = [*(StoreUnavailable("lost") for _ in times[1:]), None]
        on.change(new.id, "active")
        submitted, claim = await on.path.submit(on.pool, new, DONE, 20.0)
        assert on.claims.times == times
        assert {tuple(ids) for _, ids, _ in on.claims.matches} == {(new.id,)}
        # An earlier try had stored the claim and served it, so this result has no pair and no other code will send a signal.
        assert (submitted.what, claim, passed()) == ("new", on.claims.rows[new.id], times[-1])

    on_virtual_time(main())


def test_a_batch_that_was_stored_at_once_makes_no_waiter_read() -> None:
    async def main() -> None:
        on, new = Path(), ask()
        on.change(new.id, "waiting")
        waiting = asyncio.create_task(on.path.submit(on.pool, new, DONE, 20.0))
        await settle()
        assert on.claims.reads == []
        waiting.cancel()

    on_virtual_time(main())


def test_a_store_that_stays_away_is_reported_to_every_caller_of_the_batch() -> None:
    async def main() -> None:
        on = Path()
        on.claims.errors = [StoreUnavailable("away")] * UNKNOWN_TRIES
        submits = (on.path.submit(on.pool, ask(), DONE, 20.0) for _ in range(3))
        answers = await asyncio.gather(*submits, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        assert [len(ids) for _, ids, _ in on.claims.matches] == [3] * UNKNOWN_TRIES, "all together, and not each alone"

    on_virtual_time(main())


def test_of_a_batch_that_fails_each_request_is_sent_alone_and_only_the_bad_one_fails() -> None:
    async def main() -> None:
        on, news = Path(), [ask() for _ in range(2)]
        for new in news:
            on.change(new.id, "active")
        on.claims.errors = [ValueError("one of them is bad"), ValueError("this one"), None]
        submits = (on.path.submit(on.pool, new, DONE, 0.0) for new in news)
        bad, good = await asyncio.gather(*submits, return_exceptions=True)
        assert isinstance(bad, ValueError)
        assert not isinstance(good, BaseException)
        assert good[0].claim == news[1].id
        assert [ids for _, ids, _ in on.claims.matches] == [[new.id for new in news], [news[0].id], [news[1].id]]

    on_virtual_time(main())


def test_a_failed_request_alone_is_its_callers_error_and_not_logged_as_a_failed_match() -> None:
    async def main() -> None:
        on = Path()
        on.claims.errors = [ValueError("bad")]
        with structlog.testing.capture_logs() as logs, pytest.raises(ValueError, match="bad"):
            await on.path.submit(on.pool, ask(), DONE, 0.0)
        assert len(on.claims.matches) == 1
        assert logs == []

    on_virtual_time(main())


@pytest.mark.parametrize("requests", [0, 2])
def test_only_a_failed_match_without_requests_is_logged_because_no_caller_learns_of_it(requests: int) -> None:
    async def main() -> None:
        on = Path()
        on.claims.errors = [ValueError("bad")] * 3
        with structlog.testing.capture_logs() as logs:
            if requests:
                submits = (on.path.submit(on.pool, ask(), DONE, 0.0) for _ in range(requests))
                await asyncio.gather(*submits, return_exceptions=True)
            on.path.match_soon(on.pool)
            await settle()
        assert [line["event"] for line in logs] == ([] if requests else ["waiting claims could not be matched"])

    on_virtual_time(main())


def test_a_full_batch_of_pairs_is_followed_by_another_match_and_a_smaller_one_is_not() -> None:
    async def main(pairs: int) -> int:
        on = Path()
        on.claims.pairs = [[make_pair(f"c-{n}") for n in range(pairs)]]
        on.path.match_soon(on.pool)
        await settle()
        return len(on.claims.matches)

    async def both() -> None:
        assert (await main(BATCH - 1), await main(BATCH)) == (1, 2)

    on_virtual_time(both())


def test_the_duration_and_the_size_of_a_batch_are_measured() -> None:
    async def main() -> None:
        on = Path()
        await asyncio.gather(*(on.path.submit(on.pool, ask(), DONE, 0.0) for _ in range(3)))
        assert (on.count("match_seconds_count"), on.count("match_batch_size_count"), on.count("match_batch_size_sum")) == (
            1,
            1,
            3,
        )
        assert 0 <= on.count("match_seconds_sum") < 60

    on_virtual_time(main())


def test_a_claim_that_gets_a_worker_is_returned_without_a_read() -> None:
    async def main() -> None:
        on, new = Path(), ask()
        on.claims.pairs = [[make_pair(new.id)]]
        on.claims.rows[new.id] = make_claim(new.id, "active", fence=7, worker="w-1")
        submitted, claim = await on.path.submit(on.pool, new, DONE, 20.0)
        assert (submitted.what, claim, on.claims.reads) == ("new", on.claims.rows[new.id], [])
        assert on.claims.offers == [[(new.id, 7, True)]]

    on_virtual_time(main())
