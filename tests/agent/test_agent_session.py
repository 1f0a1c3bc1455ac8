"""The agent of a session serves one claim of its tenant after another, and ends if it is in doubt."""

import concurrent.futures
import json
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from agent_control_plane import Plane
from running_agent import Running, waits_for

from waiting import eventually

Planes = Callable[..., Plane]
Agents = Callable[..., Running]
SERVE = [sys.executable, str(Path(__file__).with_name("session_server.py"))]


def get(plane: Plane, path: str, credential: str | None) -> tuple[int, Any]:
    address = urlsplit(plane.polls[-1]["endpoint"])
    connection = HTTPConnection(address.hostname or "", address.port or 0, timeout=60)
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, json.loads(body)


def session(planes: Planes, **hooks: list[str]) -> Plane:
    return planes(mode="session", worker={"serve": SERVE, **hooks})


def test_it_is_idle_only_once_the_port_answers_and_open_only_for_its_holder(planes: Planes, agent: Agents) -> None:
    plane = session(planes)
    running = agent(plane)
    eventually(lambda: plane.doing() == "idle")
    assert plane.polls[0]["endpoint"].startswith("http://127.0.0.1:")
    assert get(plane, "/", None)[0] == 401
    assert get(plane, "/", "open-sesame")[0] == 401  # there is no claim yet
    plane.assign(credential="open-sesame")
    eventually(lambda: plane.doing() == "running")
    assert get(plane, "/", None)[0] == 401
    assert get(plane, "/", "open")[0] == 401
    status, shown = get(plane, "/some?x=1&x=%202", "open-sesame")
    assert status == 200
    assert shown["target"] == "/some?x=1&x=%202"
    assert plane.received("ack")[0]["endpoint"] == plane.polls[0]["endpoint"]
    assert "open-sesame" not in running.log
    assert "open-sesame" not in json.dumps(shown)


def test_nothing_is_open_before_the_acknowledgement(planes: Planes, agent: Agents) -> None:
    plane = session(planes)
    plane.hold_acks = True
    plane.assign(credential="open-sesame")
    agent(plane)
    eventually(lambda: plane.received("ack"))
    eventually(lambda: plane.doing() == "activating")
    assert get(plane, "/", "another")[0] == 401
    # The holder may know its credential before the agent knows that its acknowledgement was accepted. The request waits until
    # then.
    with concurrent.futures.ThreadPoolExecutor(1) as holder:
        early = holder.submit(get, plane, "/", "open-sesame")
        done, _ = concurrent.futures.wait([early], timeout=1)
        assert not done
        plane.hold_acks = False
        assert early.result(20)[0] == 200
    eventually(lambda: plane.doing() == "running")


def test_parked_it_is_reset_and_serves_its_tenant_again(planes: Planes, agent: Agents) -> None:
    plane = session(planes, reset=["sh", "-c", 'echo "reset for $HOLDFAST_TENANT on $PORT" >> resets'])
    running = agent(plane)
    plane.assign(credential="first")
    eventually(lambda: plane.doing() == "running")
    pid = get(plane, "/", "first")[1]["pid"]
    plane.end(7, park=True)
    eventually(lambda: (plane.polls[-1]["reset_fence"], plane.polls[-1]["doing"]) == (7, "idle"))
    assert plane.polls[-1]["claim"] is None
    assert get(plane, "/", "first")[0] == 401
    assert (running.work / "work" / "resets").read_text().startswith("reset for acme on ")
    plane.assign(fence=9, claim="c-2", credential="second")
    eventually(lambda: plane.doing() == "running")
    assert get(plane, "/", "first")[0] == 401
    assert get(plane, "/", "second") == (200, {**get(plane, "/", "second")[1], "pid": pid})


def test_an_old_fence_is_ignored(planes: Planes, agent: Agents) -> None:
    plane = session(planes)
    running = agent(plane)
    plane.assign(fence=7, credential="first")
    eventually(lambda: plane.doing() == "running")
    plane.end(7, park=True)
    eventually(lambda: plane.doing() == "idle" and plane.polls[-1]["reset_fence"] == 7)
    plane.assign(fence=6, claim="c-0", credential="old")
    eventually(lambda: "ignored" in running.log)
    assert [body["fence"] for body in plane.received("ack")] == [7]
    assert get(plane, "/", "old")[0] == 401


def test_a_reset_that_fails_retires_the_worker(planes: Planes, agent: Agents) -> None:
    plane = session(planes, reset=["sh", "-c", "exit 4"])
    running = agent(plane)
    plane.assign(credential="first")
    eventually(lambda: plane.doing() == "running")
    plane.end(7, park=True)
    assert running.exit_code() == 1
    assert plane.received("failed") == [{"reason": "reset exited with 4"}]
    assert (7, "idle") not in [(report["reset_fence"], report["doing"]) for report in plane.polls]


def test_without_park_it_exits(planes: Planes, agent: Agents) -> None:
    plane = session(planes)
    running = agent(plane)
    plane.assign(credential="first")
    eventually(lambda: plane.doing() == "running")
    plane.end(7, park=False)
    assert running.exit_code() == 0


def test_activation_sees_its_tenant_and_shows_progress(planes: Planes, agent: Agents) -> None:
    script = f'env > seen; cat "$HOLDFAST_PAYLOAD" >> seen; {waits_for(Path("go"))}'
    plane = session(planes, activate=["sh", "-c", script])
    running = agent(plane)
    plane.assign(credential="first", env={"COLOUR": "green"}, secrets={"KEY": "s3cret"}, payload="hello")
    eventually(lambda: len(plane.received("progress")) >= 2)
    assert not plane.received("ack")
    assert plane.doing() == "activating"
    (running.work / "work" / "go").touch()
    eventually(lambda: plane.doing() == "running")
    seen = (running.work / "work" / "seen").read_text()
    for line in ("HOLDFAST_TENANT=acme", "COLOUR=green", "KEY=s3cret", '"hello"'):
        assert line in seen
    assert "PORT=" in seen
    assert "first" not in seen
    assert "s3cret" not in running.log


@pytest.mark.parametrize("activate", [[], ["true"]])
def test_an_agent_whose_claim_went_elsewhere_exits(planes: Planes, agent: Agents, activate: list[str]) -> None:
    plane = session(planes, activate=activate)
    plane.accept = False
    plane.assign(credential="first")
    running = agent(plane)
    assert running.exit_code() == 1
    assert "no longer its own" in plane.received("failed")[0]["reason"]


def test_a_claim_that_ends_while_it_is_activated_is_never_open(planes: Planes, agent: Agents) -> None:
    plane = session(planes, activate=["sleep", "600"], reset=["true"])
    agent(plane)
    plane.assign(credential="first")
    eventually(lambda: plane.doing() == "activating")
    plane.end(7, park=True)
    eventually(lambda: plane.polls[-1]["reset_fence"] == 7)
    assert not plane.received("ack")


def test_serve_dying_while_free_is_a_failure(planes: Planes, agent: Agents) -> None:
    plane = session(planes, serve=["sh", "-c", "exit 3"])
    running = agent(plane)
    assert running.exit_code() == 1
    assert plane.received("failed") == [{"reason": "serve exited with 3"}]
    assert not plane.polls


def test_serve_dying_while_held_ends_the_agent_with_its_code(planes: Planes, agent: Agents) -> None:
    plane = session(planes)
    running = agent(plane)
    plane.assign(credential="first")
    eventually(lambda: plane.doing() == "running")
    assert get(plane, "/die", "first")[0] == 502
    assert running.exit_code() == 9
    assert not plane.received("failed")


def test_sigterm_while_free_stops_serve_and_leaves(planes: Planes, agent: Agents) -> None:
    plane = session(planes)
    running = agent(plane)
    eventually(lambda: plane.doing() == "idle")
    leader = int((running.work / "groups").read_text().split()[0])
    running.term()
    assert running.exit_code(5) == 0
    assert not Path(f"/proc/{leader}").exists()


def test_sigterm_while_held_keeps_the_session_until_its_end(planes: Planes, agent: Agents) -> None:
    plane = session(planes, reset=["touch", "reset"])
    running = agent(plane)
    plane.assign(credential="first")
    eventually(lambda: plane.doing() == "running")
    running.term()
    eventually(lambda: plane.doing() == "draining")
    assert get(plane, "/", "first")[0] == 200
    plane.end(7, park=True)
    assert running.exit_code() == 0
    assert not (running.work / "work" / "reset").exists()


def test_what_serve_prints_belongs_to_the_claim_that_it_serves(planes: Planes, agent: Agents) -> None:
    script = f"echo booting; {sys.executable} {SERVE[1]} & {waits_for(Path('say'))}; echo said; wait"
    plane = session(planes, serve=["sh", "-c", script])
    running = agent(plane)
    plane.assign(credential="first")
    eventually(lambda: plane.doing() == "running")
    (running.work / "work" / "say").touch()
    eventually(lambda: b"said" in running.output())
    assert b"booting" not in running.output()
    assert "booting" in (running.work / "serve.log").read_text()
