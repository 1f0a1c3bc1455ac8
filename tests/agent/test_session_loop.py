"""A session agent in this process: when a holder gets access, and what follows each end of a claim."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_server import STALE, Place, Server
from session_life import KEY, Life, kept

from fronted import becomes
from holdfast.agent.hold import NOT_OURS
from holdfast.agent.memory import KEPT, Held


async def test_the_holder_has_access_from_the_acknowledgement_to_the_end_and_the_next_claim_follows(
    begin: Callable[..., Life], place: Place
) -> None:
    life = begin()
    idle = await life.does("idle")
    assert (idle["endpoint"], idle["reset_fence"]) == (life.agent.endpoint, None)
    assert await life.status() == 401
    for fence, before in ((7, None), (8, 7)):
        life.server.offer(fence)
        await life.does("running", fence, before)
        assert life.server.sent("ack")[-1] == {"fence": fence, "endpoint": life.agent.endpoint, "incarnation": 0}
        assert (await life.status(), await life.status("wrong")) == (200, 401)
        assert kept(place).held == Held("c-1", fence, "acme", KEY)
        life.server.direct(do="end", fence=fence, reason="released", park=True)
        await life.does("idle", served=fence)
        assert await life.status() == 401
        assert (kept(place).held, kept(place).served, kept(place).reset) == (None, fence, True)
    life.server.offer(9)
    await life.does("running", 9, 8)
    life.server.direct(do="end", fence=9, reason="released")
    assert await life.code() == 0
    assert (kept(place).held, kept(place).served, kept(place).reset) == (None, 9, False), "it was not reset"
    assert life.server.sent("failed") == []


async def test_a_claim_without_a_credential_gives_no_access(begin: Callable[..., Life]) -> None:
    life = begin()
    await life.does("idle")
    life.server.offer(credential=None)
    await life.does("running", 7)
    assert await life.status("") == 401


async def test_a_claim_that_is_not_ours_spends_the_worker(begin: Callable[..., Life], place: Place) -> None:
    life = begin()
    await life.does("idle")
    life.server.answers["ack"] = [STALE]
    life.server.offer()
    assert await life.code() == 1
    assert life.server.sent("failed") == [{"reason": NOT_OURS}]
    assert not kept(place).reset


@pytest.mark.parametrize("park", [True, False])
async def test_a_claim_that_ends_before_it_is_accepted_ends_as_any_other(begin: Callable[..., Life], park: bool) -> None:
    life = begin()
    await life.does("idle")
    life.server.slow["ack"] = 60.0
    life.server.offer()
    await becomes(lambda: life.server.sent("ack"))
    life.server.direct(do="end", fence=7, reason="cancelled", park=park)
    if park:
        await life.does("idle", served=7)
        assert await life.status() == 401
    else:
        assert await life.code() == 0


async def test_a_claim_that_outlasts_the_grace_does_not_look_like_a_success(begin: Callable[..., Life]) -> None:
    server = Server(grace=0.05)
    life = begin(server=server)
    await life.does("idle")
    server.offer()
    await life.does("running", 7)
    life.agent.drain()
    assert await life.code() == 143


@pytest.mark.parametrize(("reset", "ok"), [(["true"], True), (["false"], False)])
async def test_a_worker_serves_its_next_claim_only_after_its_reset(
    begin: Callable[..., Life], other_container: int, place: Place, reset: list[str], ok: bool
) -> None:
    life = begin({"port": other_container, "reset": reset})
    await life.does("idle")
    life.server.offer()
    await life.does("running", 7)
    life.server.direct(do="end", fence=7, park=True)
    if ok:
        await life.does("idle", served=7)
        assert "resetting" in life.server.doing()
    else:
        assert await life.code() == 1
        assert life.server.sent("failed") == [{"reason": "reset exited with 1"}]
    assert kept(place).reset is ok


async def test_an_address_with_colons_is_written_in_brackets(begin: Callable[..., Life]) -> None:
    life = begin(advertise="fd00::1")
    endpoint = (await life.does("idle"))["endpoint"]
    assert endpoint.startswith("http://[fd00::1]:")


async def test_a_port_that_is_taken_is_a_failure(begin: Callable[..., Life]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        life = begin(port=port)
        assert await life.code() == 1
        [failed] = life.server.sent("failed")
        assert failed["reason"].startswith(f"cannot listen on 127.0.0.1:{port}: ")


# The served process


async def test_a_served_process_that_does_not_start_is_a_failure(begin: Callable[..., Life]) -> None:
    life = begin({"serve": ["sh", "-c", "exit 3"]})
    assert await life.code() == 1
    assert life.server.sent("failed") == [{"reason": "serve exited with 3"}]


SERVES = "import os, sys, socket, time; s = socket.create_server(('127.0.0.1', int(os.environ['PORT']))); "
UNTIL = "\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nsys.exit(5)"


@pytest.mark.parametrize("when", ["free", "asked", "held"])
async def test_the_death_of_the_served_process_is_reported_unless_its_holder_had_access(
    begin: Callable[..., Life], tmp_path: Path, when: str
) -> None:
    gate = tmp_path / "gate"
    life = begin({"serve": ["python3", "-c", SERVES + UNTIL, str(gate)]})
    await life.does("idle")
    if when != "free":
        life.server.slow["ack"] = 60.0 if when == "asked" else 0.0
        life.server.offer()
        await becomes(lambda: life.server.sent("ack"))
        if when == "held":
            await life.does("running", 7)
    gate.touch()
    assert await life.code() == (5 if when == "held" else 1)
    reason = "serve exited with 5"
    assert life.server.sent("failed") == ([{"reason": reason}] if when == "free" else [])
    assert life.server.sent("refuse") == ([{"fence": 7, "reason": reason}] if when == "asked" else [])


async def test_when_the_served_process_dies_connections_are_cut_before_it_is_reported(
    begin: Callable[..., Life], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    life = begin({"serve": ["python3", "-c", SERVES + UNTIL, str(gate)]})
    await life.does("idle")
    assert life.agent.endpoint is not None
    reader, _ = await asyncio.open_connection("127.0.0.1", int(life.agent.endpoint.rpartition(":")[2]))
    assert life.agent.proxy is not None
    await becomes(lambda: life.agent.proxy is not None and life.agent.proxy._writers)
    life.server.slow["failed"] = 600.0
    gate.touch()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 60)
    await becomes(lambda: life.server.sent("failed"))
    assert not life.living.done()


async def test_an_agent_that_started_its_served_process_stores_nothing_for_a_restart(
    begin: Callable[..., Life], place: Place
) -> None:
    life = begin({"serve": ["python3", "-c", SERVES + "time.sleep(600)"]})
    await life.does("idle")
    assert not (place.folder / KEPT).exists()
