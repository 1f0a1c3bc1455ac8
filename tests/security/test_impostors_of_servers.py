"""A process that listens where a replica should listen gets no token from an agent, and cannot make the agent do anything."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from agent_control_plane import Plane
from proving_planes import SIGNER, ProvingPlane, Relay
from running_agent import Running, waits_for

from holdfast.proof import PublicKey, Signer
from waiting import eventually

KEY = {"HOLDFAST_SERVER_KEY": SIGNER.public_key}
Keep = Callable[[Any], Any]


@pytest.fixture
def ended() -> Iterator[Keep]:
    """Returns a function that keeps what a test starts, and ends it after the test."""
    kept: list[Any] = []

    def keep(started: Any) -> Any:
        kept.append(started)
        return started

    yield keep
    for each in reversed(kept):
        if isinstance(each, Running):
            print(each.log)
            each.end()
        else:
            each.close()


def job(marker: Path) -> dict[str, Any]:
    return {"claim": "c-1", "fence": 7, "tenant": "acme", "command": ["touch", str(marker)], "credential": "x"}


def test_an_impostor_on_a_departed_replicas_port_gets_no_token_and_runs_nothing(tmp_path: Path, ended: Keep) -> None:
    marker, registration = tmp_path / "marker", {"token": "t", "mode": "job", "poll_seconds": 20, "grace": 60}
    answers = {"/v1/worker/register": registration, "/v1/worker/poll": {"do": "hold", "assignment": job(marker)}}
    impostor = ended(Relay(None, lambda path, _: json.dumps(answers.get(path, {})).encode()))
    plane = ended(ProvingPlane())
    running = ended(Running(tmp_path, [impostor.url], **KEY))
    eventually(lambda: len(impostor.requests) >= 4, what="the agent tries again and again")
    assert impostor.tokens == []
    assert not marker.exists()
    assert running.log.count("impostor") == 1, "it is logged once, not at each try"
    plane.assign(command=["true"])
    running.servers_file.write_text(f"{impostor.url}\n{plane.url}\n")
    assert running.exit_code() == 0
    assert plane.received("result")[0]["exit_code"] == 0, "the agent finds the real server beside the impostor"
    assert impostor.tokens == []
    assert not marker.exists()


def test_an_impostors_end_does_not_stop_a_busy_job(tmp_path: Path, ended: Keep) -> None:
    plane, gate = ended(ProvingPlane()), tmp_path / "gate"
    plane.assign(command=["sh", "-c", waits_for(gate)])
    running = ended(Running(tmp_path, [plane.url], HOLDFAST_LONELY_SECONDS="0", **KEY))
    eventually(lambda: plane.doing() == "running")
    port = plane.port
    plane.down()
    end = json.dumps({"do": "end", "fence": 7, "reason": "made up", "park": False}).encode()
    impostor = Relay(None, lambda _path, _body: end, port)
    try:
        eventually(lambda: len(impostor.requests) >= 4, what="the agent tries again and again")
        assert running.popen.poll() is None, "a busy agent does not leave, however long it has reached no server"
        assert impostor.tokens == []
    finally:
        impostor.close()
    assert running.log.count("impostor") == 1
    plane.up(port)
    gate.touch()
    assert running.exit_code() == 0
    assert [each["exit_code"] for each in plane.received("result")] == [0], "the job was not stopped"


def test_a_relay_that_changes_an_answer_is_noticed(tmp_path: Path, ended: Keep) -> None:
    plane = ended(ProvingPlane(poll_seconds=0.2))

    def condemn(path: str, body: bytes) -> bytes:
        return b'{"do": "exit", "reason": "made up"}' if path.endswith("/poll") else body

    relay = ended(Relay(plane.url, condemn))
    running = ended(Running(tmp_path, [relay.url], **KEY))
    eventually(lambda: len([path for path, _ in relay.requests if path.endswith("/poll")]) >= 3)
    assert running.popen.poll() is None
    assert "its answer has a wrong proof" in running.log
    running.servers_file.write_text(plane.url)
    plane.assign(command=["true"])
    assert running.exit_code() == 0
    assert plane.received("result"), "over an honest connection the same agent works"


def test_a_server_without_proof_is_an_impostor_for_an_agent_that_has_the_key(tmp_path: Path, ended: Keep) -> None:
    old = ended(Plane())
    running = ended(Running(tmp_path, [old.url], HOLDFAST_LONELY_SECONDS="0.5", **KEY))
    assert running.exit_code() == 1, "a free agent that meets impostors only leaves: they do not count as contact"
    assert old.received("register") == []
    assert "its answer has no proof" in running.log


def test_an_agent_of_the_release_before_works_with_a_server_that_proves_itself(tmp_path: Path, ended: Keep) -> None:
    plane = ended(ProvingPlane())
    plane.assign(command=["true"])
    running = ended(Running(tmp_path, [plane.url]))
    assert running.exit_code() == 0
    assert plane.received("result")[0]["exit_code"] == 0


def test_a_proof_is_valid_for_one_answer_to_one_request_only() -> None:
    nonce, path, token = "n" * 24, "/v1/worker/poll", "Bearer hfa_one"
    signed = (nonce, path, token, 200, b'{"do":"nothing"}')
    proof, key = SIGNER.sign(*signed) or "", PublicKey(SIGNER.public_key)
    assert key.verify(proof, *signed)
    changed = ("m" * 24, "/v1/worker/ack", "Bearer hfa_another_worker", 409, b'{"do":"exit"}')
    for n, value in enumerate(changed):
        assert not key.verify(proof, *signed[:n], value, *signed[n + 1 :]), value
    assert not PublicKey(Signer(b"another installation").public_key).verify(proof, *signed)
    for forged in ("", "forged", proof[:-2], "é" * 86):
        assert not key.verify(forged, *signed)
    for nonce in ("", "short", "n" * 65, "line\nbreak" * 3):
        assert SIGNER.sign(nonce, *signed[1:]) is None
