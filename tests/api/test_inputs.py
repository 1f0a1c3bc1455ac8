"""A caller sends standard input over HTTP, sends it again, and waits for room."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.api import inputs
from holdfast.client import Client, Conflict
from holdfast.client.inputs import PIECE, InputState
from served_api import Stage

DATA = random.Random(1).randbytes(2 * PIECE + 100)


@pytest.fixture
def claim(stage: Stage) -> str:
    return str(
        stage.ask("POST", "/v1/claims", {"pool": "agents", "command": ["cat"], "stdin": True, "wait": "0s"}, token="acme").json[
            "id"
        ]
    )


async def sent(stage: Stage, claim: str, source: bytes | AsyncIterator[bytes]) -> InputState:
    async with Client(stage.url, "acme") as client, asyncio.timeout(20):
        return await client.send_input(claim, source)


def received(stage: Stage, claim: str) -> tuple[bytes, bool]:
    """Returns what the command would read, and whether its stdin would be closed then."""
    piece = stage.do(stage.store.inputs.next(claim, 0))
    return piece.data, piece.end


async def in_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def interrupted(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    raise KeyError("the program that sent this was stopped")


async def test_a_caller_that_sends_the_same_input_again_does_not_double_it(stage: Stage, claim: str) -> None:
    for _ in range(2):
        state = await sent(stage, claim, DATA)
        assert (state.offset, state.end) == (len(DATA), True)
    assert received(stage, claim) == (DATA, True)


async def test_a_caller_that_was_stopped_starts_again_and_the_rest_is_added(stage: Stage, claim: str) -> None:
    with pytest.raises(KeyError):
        await sent(stage, claim, interrupted(DATA[:10], DATA[10:5000]))
    assert received(stage, claim) == (DATA[:5000], False)
    await sent(stage, claim, in_parts(DATA[:7], DATA[7:4000], DATA[4000:]))
    assert received(stage, claim) == (DATA, True)


async def test_two_callers_that_send_the_same_input_at_once_deliver_it_once(stage: Stage, claim: str) -> None:
    parts = [DATA[at : at + 999] for at in range(0, len(DATA), 999)]
    await asyncio.gather(sent(stage, claim, DATA), sent(stage, claim, in_parts(*parts)))
    whole = b"".join(stage.do(pieces(stage, claim)))
    assert whole == DATA


async def pieces(stage: Stage, claim: str) -> list[bytes]:
    rows = await stage.store.db.rows("SELECT data FROM holdfast.claim_input_piece WHERE claim_id = $1 ORDER BY position", claim)
    return [row["data"] for row in rows]


@pytest.mark.parametrize("other", [DATA + b"more", DATA[:-1], b""])
async def test_a_caller_whose_input_has_another_length_than_the_first_is_refused(stage: Stage, claim: str, other: bytes) -> None:
    await sent(stage, claim, DATA)
    with pytest.raises(Conflict, match=str(len(DATA))) as refused:
        await sent(stage, claim, other)
    assert refused.value.code == "input-differs"
    assert received(stage, claim) == (DATA, True)


def post(stage: Stage, claim: str, **body: Any) -> Any:
    return stage.ask("POST", f"/v1/claims/{claim}/input", body, token="acme")


def test_data_after_the_end_is_refused(stage: Stage, claim: str) -> None:
    assert post(stage, claim, offset=0, data="b25l", end=True).json["offset"] == 3
    assert post(stage, claim, offset=0, data="b25l", end=True).status == 200, "a request is safe to repeat"
    for offset in (1, 3):
        refused = post(stage, claim, offset=offset, data="b25l")
        assert (refused.status, refused.json["code"]) == (409, "input-differs")
    assert received(stage, claim) == (b"one", True)


def test_a_caller_that_waits_for_room_only_reads(stage: Stage, claim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LONGEST_WAIT", 3.0)
    monkeypatch.setattr(inputs, "ROOM", 3)
    assert post(stage, claim, offset=0, data="b25l").json["offset"] == 3
    versions = set()

    async def watch() -> None:
        waiting = asyncio.ensure_future(asyncio.to_thread(post, stage, claim, offset=3, data="dHdv"))
        while not waiting.done():
            for row in await stage.store.db.rows("SELECT ctid, xmin, xmax FROM holdfast.claim_input WHERE claim_id = $1", claim):
                versions.add(str(row))
            await asyncio.sleep(0.02)
        assert waiting.result().json["offset"] == 3

    stage.do(watch())
    assert len(versions) <= 2, "the first try may lock the row, and the others only read it"


def test_a_caller_that_waits_for_room_goes_on_when_the_agent_takes_some(
    stage: Stage, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "ROOM", 3)
    post(stage, claim, offset=0, data="b25l")

    async def take() -> Any:
        waiting = asyncio.ensure_future(asyncio.to_thread(post, stage, claim, offset=3, data="dHdv", end=True))
        await asyncio.wait([waiting], timeout=1)
        assert not waiting.done()
        await stage.store.db.rows("UPDATE holdfast.claim_input SET taken = 3 WHERE claim_id = $1", claim)  # at another replica
        return await waiting

    answer = stage.do(take())
    assert (answer.json["offset"], answer.json["end"]) == (6, True)


def test_a_caller_that_waits_for_room_is_refused_as_soon_as_the_claim_ends(
    stage: Stage, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "ROOM", 3)
    post(stage, claim, offset=0, data="b25l")

    async def end() -> Any:
        waiting = asyncio.ensure_future(asyncio.to_thread(post, stage, claim, offset=3, data="dHdv"))
        await asyncio.wait([waiting], timeout=0.5)
        await asyncio.to_thread(stage.ask, "POST", f"/v1/claims/{claim}/cancel", {}, token="acme")
        return await waiting

    answer = stage.do(end())
    assert (answer.status, answer.json["code"]) == (409, "ended")
