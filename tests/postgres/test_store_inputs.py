"""A command receives every byte of its input once and in order, and no more is stored than there is room for."""

import asyncio

from holdfast.ports.inputs import InputPiece, InputState
from holdfast.postgres.store import PostgresStore
from postgres.changes import apart
from postgres.store_rows import ago, insert
from postgres.store_steps import DIRECT, ask, assigned, make_pool, make_warm
from postgres.store_tables import column

ROOM = 100


async def running(store: PostgresStore, **request: object) -> tuple[str, str, int]:
    """Returns a claim, the worker that runs its command, and the fence."""
    pool = await make_pool(store, DIRECT)
    await make_warm(store, pool)
    pair = await assigned(store, pool, ask(request={"command": ["cat"], "stdin": True, **request}))
    return pair.claim, pair.worker, pair.fence


async def stored_pieces(store: PostgresStore) -> list[int]:
    return await column(store, "SELECT position FROM holdfast.claim_input_piece ORDER BY 1")


async def test_what_the_caller_sends_the_agent_takes_once_and_in_order(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    assert await store.inputs.state(claim) is None
    assert await store.inputs.store(claim, 0, b"one ", False, ROOM) == InputState(4, None, False, False)
    assert await store.inputs.store(claim, 4, b"two", False, ROOM) == InputState(7, None, False, False)
    assert await store.inputs.take(worker, fence, 0, False) == InputPiece(claim, b"one two", end=False)
    assert await store.inputs.take(worker, fence, 0, False) == InputPiece(claim, b"one two", end=False), "the answer was lost"
    assert await store.inputs.take(worker, fence, 7, False) == InputPiece(claim, b"", end=False)
    assert await stored_pieces(store) == []
    assert await store.inputs.store(claim, 7, b"", True, ROOM) == InputState(7, 7, True, False)
    assert await store.inputs.next(claim, 7) == InputPiece(claim, b"", end=True)


async def test_bytes_that_are_sent_again_are_not_stored_again(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    for _ in range(2):
        assert await store.inputs.store(claim, 0, b"one", False, ROOM) == InputState(3, None, False, False)
    await store.inputs.take(worker, fence, 3, False)
    assert await store.inputs.store(claim, 0, b"one", False, ROOM) == InputState(3, 3, False, False)
    await store.inputs.store(claim, 3, b"two", True, ROOM)
    assert await store.inputs.store(claim, 3, b"two", True, ROOM) == InputState(6, 3, True, False)
    assert await store.inputs.store(claim, 0, b"one", False, ROOM) == InputState(6, 3, True, False), "an old request arrives late"
    assert await store.inputs.next(claim, 3) == InputPiece(claim, b"two", end=True)
    assert await store.inputs.store(claim, 6, b"more", False, ROOM) == InputState(6, 3, True, False), "nothing follows the end"


async def test_of_many_requests_for_one_offset_one_is_stored(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    states = await asyncio.gather(*(store.inputs.store(claim, 0, b"same", False, ROOM) for _ in range(8)))
    assert states == [InputState(4, None, False, False)] * 8
    assert await store.inputs.take(worker, fence, 0, False) == InputPiece(claim, b"same", end=False)


async def test_a_caller_that_is_faster_than_the_command_finds_no_room(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    for number in range(10):
        await store.inputs.store(claim, number * 10, b"x" * 10, False, ROOM)
    full = await store.inputs.store(claim, 100, b"y", True, ROOM)
    assert full == InputState(100, None, False, False), "neither the byte nor the end is stored"
    assert len(await stored_pieces(store)) == 10
    await store.inputs.take(worker, fence, 10, False)
    assert await store.inputs.store(claim, 100, b"y", True, ROOM) == InputState(101, 10, True, False)


async def test_a_command_that_reads_no_more_is_sent_no_more(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    await store.inputs.store(claim, 0, b"one", False, ROOM)
    await store.inputs.take(worker, fence, 0, True)
    assert await stored_pieces(store) == []
    assert await store.inputs.store(claim, 3, b"two", False, ROOM) == InputState(3, 0, False, True)
    assert await stored_pieces(store) == []


async def test_input_is_taken_only_by_the_worker_that_runs_the_command(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    await store.inputs.store(claim, 0, b"one", False, ROOM)
    assert await store.inputs.take("w-other", fence, 0, False) is None
    assert await store.inputs.take(worker, fence + 1, 0, False) is None


async def test_input_is_erased_when_the_claim_ends_and_none_is_stored_after_that(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    await store.inputs.store(claim, 0, b"a password", False, ROOM)
    await store.claims.end(claim, outcome="cancelled", how="cancel", reason="", states=("active",))
    assert await stored_pieces(store) == []
    assert await store.inputs.store(claim, 10, b"more", False, ROOM) is None
    assert await store.inputs.take(worker, fence, 0, False) is None


async def test_a_claim_without_stdin_takes_none(store: PostgresStore) -> None:
    claim, _, _ = await running(store, stdin=False)
    assert await store.inputs.store(claim, 0, b"x", False, ROOM) is None
    assert await store.inputs.store("c-none", 0, b"x", False, ROOM) is None


async def test_after_lost_commits_the_agents_number_counts(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    await store.inputs.store(claim, 0, b"1234", False, ROOM)
    assert await store.inputs.take(worker, fence, 9, False) == InputPiece(claim, b"", end=False)
    assert await store.inputs.state(claim) == InputState(9, 9, False, False)
    assert await store.inputs.store(claim, 12, b"lost before this", False, ROOM) == InputState(9, 9, False, False)


async def test_pruning_removes_the_input_of_ended_and_forgotten_claims(store: PostgresStore) -> None:
    await apart(store)
    claim, _, _ = await running(store)
    await insert(store, "claim", id="c-ended", state="ended", outcome="lost", ended_at=ago(1))
    await store.inputs.store(claim, 0, b"live", False, ROOM)
    for old in ("c-ended", "c-unknown"):
        await store.db.rows("INSERT INTO holdfast.claim_input (claim_id) VALUES ($1)", old)
        await store.db.rows("INSERT INTO holdfast.claim_input_piece (claim_id, position, data) VALUES ($1, 0, 'x')", old)
    pruned = await store.history.prune(7)
    assert (pruned["inputs"], pruned["input_pieces"]) == (2, 2)
    assert await column(store, "SELECT claim_id FROM holdfast.claim_input_piece") == [claim]


async def test_a_piece_that_begins_within_another_one_is_not_stored(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    await store.inputs.store(claim, 0, b"one two", False, ROOM)
    assert await store.inputs.store(claim, 4, b"two", False, ROOM) == InputState(7, None, False, False)
    assert await store.inputs.store(claim, 4, b"two and", False, ROOM) == InputState(7, None, False, False)
    assert await store.inputs.take(worker, fence, 0, False) == InputPiece(claim, b"one two", end=False)
    assert await store.inputs.store(claim, 4, b"two", True, ROOM) == InputState(7, 0, True, False), "the end is new"
    assert await store.inputs.take(worker, fence, 0, False) == InputPiece(claim, b"one two", end=True)


async def test_of_requests_that_overlap_and_arrive_at_once_each_byte_is_stored_once(store: PostgresStore) -> None:
    claim, worker, fence = await running(store)
    await store.inputs.store(claim, 0, b"", False, ROOM)
    for _ in range(5):
        await asyncio.gather(*(store.inputs.store(claim, at, b"0123456789"[at:], False, ROOM) for at in (0, 3, 7, 9, 0, 5)))
    assert await store.inputs.take(worker, fence, 0, False) == InputPiece(claim, b"0123456789", end=False)
