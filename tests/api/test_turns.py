"""While others use a replica, a tenant has two requests in progress there. Its others wait for their turn."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet import eventually
from holdfast.api.auth import Caller
from holdfast.api.problems import Problem
from holdfast.api.turns import ALONE, LINE, PRESENT, SHARED, Turn, Turns
from served_api import Stage

EVIL, GOOD, ADMIN = Caller("t-1", "tenant", "evil"), Caller("t-2", "tenant", "good"), Caller("t-3", "admin", None)


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def taken(turns: Turns, count: int) -> list[Turn]:
    """Returns turns of a tenant that is not alone."""
    await turns.take(ADMIN)
    made = [await turns.take(EVIL) for _ in range(count)]
    return [turn for turn in made if turn is not None]


async def test_the_third_request_waits_until_another_one_ends_and_others_do_not_wait() -> None:
    turns = Turns(lambda: 100.0)
    first, _ = await taken(turns, SHARED)
    waiting = [asyncio.ensure_future(turns.take(EVIL)) for _ in range(2)]
    await soon()
    assert not any(task.done() for task in waiting)
    assert await asyncio.wait_for(turns.take(GOOD), 1) is not None
    assert await asyncio.wait_for(turns.take(ADMIN), 1) is None
    first.give_back()
    first.give_back()  # a request gives its turn back when it only waits, and again when it ends
    await soon()
    assert [task.done() for task in waiting] == [True, False], "in the order of arrival, and one for one"
    waiting[1].cancel()


async def test_a_request_whose_caller_has_gone_passes_its_turn_on() -> None:
    turns = Turns(lambda: 100.0)
    first, second = await taken(turns, SHARED)
    gone_before, gone_with_it, stays = (asyncio.ensure_future(turns.take(EVIL)) for _ in range(3))
    await soon()
    gone_before.cancel()
    first.give_back()
    gone_with_it.cancel()  # it has the turn, and has not run since
    await soon()
    assert stays.done()
    second.give_back()
    stays.result().give_back()  # type: ignore[union-attr]
    assert len(await taken(turns, 2)) == 2, "no turn was lost"


async def test_a_turn_of_a_flood_rests_as_long_as_it_was_used() -> None:
    now = 100.0
    turns = Turns(lambda: now)
    first, second = await taken(turns, SHARED)
    waiting = asyncio.ensure_future(turns.take(EVIL))
    await soon()
    now += 0.1
    first.give_back()
    await soon()
    assert not waiting.done()
    loop = asyncio.get_running_loop()
    since = loop.time()
    await asyncio.wait_for(waiting, 10)
    assert loop.time() - since >= 0.09
    second.give_back()
    assert len(await taken(turns, 1)) == 1, "without a line, a turn does not rest"


async def test_a_tenant_that_is_alone_has_more_turns_until_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    turns = Turns(lambda: now)
    alone = [turn for turn in [await turns.take(EVIL) for _ in range(ALONE)] if turn is not None]
    line = [asyncio.ensure_future(turns.take(EVIL)) for _ in range(ALONE)]
    await soon()
    assert len(alone) == ALONE
    assert await turns.take(GOOD) is not None
    for turn in alone[: ALONE - SHARED]:
        turn.give_back()
    await soon()
    assert not any(task.done() for task in line), "it still has its two"
    alone[-1].give_back()
    await soon()
    assert [task.done() for task in line].count(True) == 1
    now += PRESENT
    alone[-2].give_back()
    await soon()
    assert [task.done() for task in line].count(True) == ALONE, "the other one has left"


async def test_a_line_that_is_too_long_is_refused_and_nothing_is_left_of_it() -> None:
    turns = Turns(lambda: 100.0)
    running = await taken(turns, SHARED)
    line = [asyncio.ensure_future(turns.take(EVIL)) for _ in range(LINE)]
    await soon()
    with pytest.raises(Problem, match=f"has {LINE} requests waiting here") as refused:
        await turns.take(EVIL)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    for turn in running:
        turn.give_back()
    for task in line:
        (await task).give_back()  # type: ignore[union-attr]
    assert not turns._taken
    assert not turns._line


def test_a_slow_sender_and_a_full_line_keep_no_renewal_waiting(stage: Stage) -> None:
    """Otherwise a holder that renews in time would lose its lease because of its tenant's other requests."""
    claim = stage.claim(lease="60s")
    head = b"POST /v1/claims HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\nContent-Length: 60\r\n\r\n{"
    slow = [socket.create_connection(("127.0.0.1", stage.port)) for _ in range(ALONE + 2)]
    try:
        for connection in slow:
            connection.sendall(head)
        turns = stage.wired.context.turns
        eventually(lambda: len(stage.wired.door._known) == len(slow), 10, "all of them have shown their token")
        assert not turns._taken, "a body that is not complete takes no turn"
        turns._taken["acme"] = ALONE  # as many as a tenant may have
        renewed = stage.ask("POST", f"/v1/claims/{claim['id']}/renew", {"fence": claim["fence"]}, token="acme")
        assert renewed.status == 200
        released = stage.ask("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]}, token="acme")
        assert released.status == 200
    finally:
        for connection in slow:
            connection.close()


def test_requests_that_wait_for_their_claims_leave_the_turns_to_others(stage: Stage) -> None:
    body = {"pool": "agents", "command": ["true"], "wait": "20s"}
    with ThreadPoolExecutor(12) as pool:
        asking = [pool.submit(stage.ask, "POST", "/v1/claims", body, token="acme") for _ in range(6 * SHARED)]
        items = eventually(
            lambda: (found := stage.ask("GET", "/v1/claims", token="acme").json["items"])[6 * SHARED - 1 :] and found,
            10,
            "all of them are stored, although each still waits",
        )
        reading = [pool.submit(stage.ask, "GET", f"/v1/claims/{item['id']}?wait=20s", token="acme") for item in items]
        assert stage.ask("GET", "/v1/me", token="acme").status == 200
        for item in items:
            assert stage.ask("POST", f"/v1/claims/{item['id']}/cancel", {}, token="acme").status == 200
        assert {each.result(20).json["state"] for each in [*asking, *reading]} == {"ended"}
