"""How an agent reaches a replica: it tries replicas in turn, pauses, renews its token, and decides what counts as silence."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import __version__
from holdfast.agent import control as module
from holdfast.agent.config import Config
from holdfast.agent.control import Control
from holdfast.agent.http import HttpResponse, Unreachable
from holdfast.agent.messages import AgentReport, Directive

IDLE = AgentReport(doing="idle")
OK = HttpResponse(200, b"{}")
STALE = HttpResponse(409, b'{"code": "stale"}')
OTHER = HttpResponse(409, b'{"code": "conflict"}')
AWAY = HttpResponse(503, b"{}")
GONE = Unreachable("gone")


class World:
    """Two replicas whose answers come from a script, and a clock that moves only while the agent pauses."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, servers: tuple[str, ...] = ("http://one", "http://two")
    ) -> None:
        (folder / "token").write_text("bootstrap-1")
        self.file = folder / "servers"
        self.file.write_text("http://one\nhttp://two")
        self.token = folder / "token"
        self.now = 1000.0
        self.paused: list[float] = []
        self.silences: list[float] = []
        self.calls: list[tuple[str, str, str, dict[str, Any], float]] = []
        self.script: list[HttpResponse | Exception] = []
        self.registrations: list[HttpResponse | Exception] = []
        self.signed, self.give_up_after = 0, 1e9
        self.expires_in = 3600.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(
            module, "random", SimpleNamespace(uniform=lambda low, high: self.chance(low, high), randrange=lambda n: 0)
        )
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(Lock=asyncio.Lock, timeout=asyncio.timeout, sleep=self.sleep))
        config = Config(
            worker="w-1",
            uid="uid-1",
            token_file=self.token,
            servers_file=self.file,
            servers=(),
            folder=folder,
            outputs=folder,
            lonely=600,
            bind="127.0.0.1",
            port=0,
            advertise="127.0.0.1",
        )
        self.control = Control(config, self.silent)
        self.control._client = self  # type: ignore[assignment]

    def chance(self, low: float, high: float) -> float:
        assert (low, high) == (0.5, 1.0)
        return high

    async def sleep(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def silent(self, seconds: float) -> None:
        self.silences.append(seconds)
        if seconds > self.give_up_after:
            raise TimeoutError

    async def post(self, server: str, path: str, token: str, body: bytes, timeout: float) -> HttpResponse:
        self.calls.append((server, path, token, json.loads(body), timeout))
        if path == "/v1/worker/register":
            answer = self.registrations.pop(0) if self.registrations else self.registration()
        else:
            answer = self.script.pop(0) if self.script else OK
        if isinstance(answer, Exception):
            raise answer
        return answer

    def registration(self) -> HttpResponse:
        self.signed += 1
        return HttpResponse(200, json.dumps({"token": f"signed-{self.signed}", "expires_in": self.expires_in}).encode())

    def asked(self, call: str) -> list[tuple[str, str]]:
        """Returns which replica received a request to this route, and with which token."""
        return [(server, token) for server, path, token, *_ in self.calls if path == f"/v1/worker/{call}"]

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_an_agent_registers_with_its_bootstrap_token_and_its_identity(world: World) -> None:
    registration = world.do(world.control.register())
    assert registration.token == "signed-1"
    body = {"worker": "w-1", "uid": "uid-1", "version": __version__, "protocol": 1}
    assert world.calls == [("http://one", "/v1/worker/register", "bootstrap-1", body, 10.0)]


def test_each_report_goes_to_its_path_with_the_short_token(world: World) -> None:
    control, report = world.control, AgentReport(doing="running", claim="c-1", fence=7, tenant="acme")

    async def story() -> None:
        await control.poll(report, 20)
        assert await control.progress(7)
        assert await control.acknowledge(7, "10.0.0.1:80")
        assert await control.result(7, 3, "it failed")
        await control.refuse(7, "no", "last lines", 5)
        await control.failed("broken", "", 5)
        await control.send_report(report, 5)

    world.do(story())
    as_sent = {
        "doing": "running",
        "claim": "c-1",
        "fence": 7,
        "tenant": "acme",
        "reset_fence": None,
        "endpoint": None,
        "credential": None,
        "incarnation": 0,
    }
    assert [(path.removeprefix("/v1/worker/"), body, timeout) for _, path, token, body, timeout in world.calls[1:]] == [
        ("poll", {**as_sent, "wait": 20}, 30.0),
        ("progress", {"fence": 7}, 3.0),
        ("ack", {"fence": 7, "endpoint": "10.0.0.1:80", "incarnation": 0}, 10.0),
        ("result", {"fence": 7, "exit_code": 3, "reason": "it failed"}, 10.0),
        ("refuse", {"fence": 7, "reason": "no", "output": "last lines"}, 10.0),
        ("failed", {"reason": "broken"}, 10.0),
        ("poll", {**as_sent, "wait": 0}, 10.0),
    ]
    assert {token for _, _, token, *_ in world.calls[1:]} == {"signed-1"}


Call = Callable[[Control], Coroutine[Any, Any, bool]]
REPORTS: dict[str, Call] = {
    "acknowledge": lambda control: control.acknowledge(7, None),
    "result": lambda control: control.result(7, 0, ""),
    "progress": lambda control: control.progress(7),
}


@pytest.mark.parametrize("name", REPORTS)
def test_stale_is_an_answer_and_another_conflict_is_none(world: World, name: str) -> None:
    world.script = [STALE]
    assert world.do(REPORTS[name](world.control)) is False
    world.script = [OTHER]
    assert world.do(REPORTS[name](world.control)) is True
    asked_again = name != "progress"  # only one try, because the next would come after 3 s
    assert len(world.calls) == 1 + 2 + asked_again


@pytest.mark.parametrize("answer", [GONE, AWAY], ids=["no answer", "503"])
def test_progress_without_an_answer_does_not_take_the_claim_away(world: World, answer: Any) -> None:
    world.script = [answer]
    assert world.do(REPORTS["progress"](world.control)) is True


@pytest.mark.parametrize("failure", [GONE, AWAY], ids=["no answer", "503"])
def test_replicas_are_tried_in_turn_at_once_and_only_a_whole_round_pauses(world: World, failure: Any) -> None:
    world.script = [failure] * 5
    world.do(world.control.result(7, 0, ""))
    assert [server for server, _ in world.asked("result")] == ["http://one", "http://two"] * 3
    assert world.paused == pytest.approx([0.2, 0.4])


def test_pauses_double_up_to_ten_seconds(world: World) -> None:
    world.script = [GONE] * 20
    world.do(world.control.result(7, 0, ""))
    assert world.paused == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0])


@pytest.mark.parametrize(("asked", "waited"), [(0, 0.2), (5, 5.0), (60, 10.0)])
def test_a_server_that_asks_for_a_pause_gets_it_up_to_ten_seconds(world: World, asked: float, waited: float) -> None:
    world.script = [AWAY, HttpResponse(503, b"{}", asked)]
    world.do(world.control.result(7, 0, ""))
    assert world.paused == [waited]


def test_a_refusal_pauses_at_once_and_stays_with_its_replica(world: World) -> None:
    world.script = [HttpResponse(422, b"{}"), HttpResponse(422, b"{}")]
    world.do(world.control.result(7, 0, ""))
    assert [server for server, _ in world.asked("result")] == ["http://one"] * 3
    assert len(world.paused) == 2


def test_a_token_that_was_refused_is_replaced_without_a_pause_once(world: World) -> None:
    refused = HttpResponse(401, b"{}")
    world.script = [refused]
    world.do(world.control.result(7, 0, ""))
    assert [token for _, token in world.asked("result")] == ["signed-1", "signed-2"]
    assert world.paused == []
    world.script = [refused, refused]
    world.do(world.control.result(8, 0, ""))
    assert len(world.paused) == 1, "a second refusal is no token that ran out"


def test_a_token_is_renewed_at_four_fifths_of_its_life_and_used_to_its_end_if_it_cannot_be_renewed(world: World) -> None:
    world.expires_in = 100
    world.do(world.control.register())
    world.now += 79.9
    world.do(world.control.progress(7))
    assert world.signed == 1
    world.now += 0.1
    world.registrations = [GONE]
    world.do(world.control.progress(7))
    assert world.asked("progress")[-1][1] == "signed-1"
    world.do(world.control.progress(7))
    assert world.asked("progress")[-1][1] == "signed-2"
    world.now += 100
    world.registrations = [HttpResponse(500, b"")]
    before = len(world.asked("progress"))
    assert world.do(world.control.progress(7)) is True
    assert len(world.asked("progress")) == before, "without a token nothing is sent"


NO_REGISTRATIONS = [GONE, *(HttpResponse(*each) for each in ((401, b"{}"), (201, b'{"token": "x"}'), (200, b"{"), (200, b"{}")))]


@pytest.mark.parametrize("bad", NO_REGISTRATIONS)
def test_registration_goes_on_until_one_is_understood(world: World, bad: Any) -> None:
    world.registrations = [bad, bad]
    assert world.do(world.control.register()).token == "signed-1"
    assert len(world.asked("register")) == 3
    assert world.paused == [pytest.approx(0.2)], "a pause after each round of replicas"
    assert len(world.silences) == 2


def test_a_bootstrap_token_that_cannot_be_read_is_no_registration(world: World) -> None:
    world.token.unlink()
    world.give_up_after = 5
    with pytest.raises(TimeoutError):
        world.do(world.control.register())
    assert world.calls == []


def test_a_directive_that_is_not_understood_is_asked_for_again_after_a_while(world: World) -> None:
    world.script = [HttpResponse(200, b"{"), HttpResponse(200, b'{"do": "exit", "reason": "condemned"}')]
    assert world.do(world.control.poll(IDLE, 20)) == Directive(do="exit", reason="condemned")
    assert world.paused == [10.0]


def test_a_report_that_did_not_count_is_sent_again_once_with_the_incarnation_that_the_server_named(world: World) -> None:
    def named(incarnation: int) -> HttpResponse:
        return HttpResponse(200, json.dumps({"do": "nothing", "incarnation": incarnation}).encode())

    async def story() -> None:
        assert (await world.control.poll(IDLE, 20)).do == "exit"
        await world.control.acknowledge(7, None)
        assert (await world.control.poll(IDLE, 20)).do == "nothing", "a pause of the caller, not a busy loop"
        await world.control.send_report(IDLE, 5)

    world.script = [named(3), HttpResponse(200, b'{"do": "exit"}'), OK, named(4), named(5)]
    world.do(story())
    assert [body["incarnation"] for _, path, _, body, _ in world.calls if "register" not in path] == [0, 3, 3, 3, 4, 5]
    assert world.paused == []


def test_the_last_report_of_a_draining_agent_is_sent_again_if_it_did_not_count(world: World) -> None:
    """Otherwise a claim could still be assigned to the worker, because the server does not know that its agent has exited."""
    world.script = [HttpResponse(200, b'{"do": "nothing", "incarnation": 3}')]
    world.do(world.control.send_report(AgentReport(doing="draining"), 5))
    assert [(body["doing"], body["incarnation"]) for _, path, _, body, _ in world.calls if "poll" in path] == [
        ("draining", 0),
        ("draining", 3),
    ]


def test_silence_counts_from_the_first_failure_and_ends_with_an_answer(world: World) -> None:
    world.now = 5000.0
    world.script = [GONE, GONE, GONE]
    world.do(world.control.result(7, 0, ""))
    assert world.silences == [0.0, 0.0, pytest.approx(0.2)]
    world.now += 500
    world.script = [GONE]
    world.do(world.control.result(8, 0, ""))
    assert world.silences[-1] == 0.0, "it had contact in between"


@pytest.mark.parametrize(
    ("status", "received"), [(401, False), (403, False), (502, False), (504, False), (500, True), (503, True), (404, True)]
)
def test_an_answer_that_is_not_a_replicas_counts_as_silence(world: World, status: int, received: bool) -> None:
    world.script = [GONE, GONE, HttpResponse(status, b"{}"), GONE]
    world.do(world.control.result(7, 0, ""))
    assert (world.silences[2] == 0.0) is received


def test_counting_silence_may_end_the_call(world: World) -> None:
    world.give_up_after = 60
    world.script = [GONE] * 1000
    with pytest.raises(TimeoutError):
        world.do(world.control.result(7, 0, ""))
    assert 60 < world.silences[-1] <= 71


def test_new_replicas_are_found_in_the_file_when_one_fails_and_kept_while_it_is_being_written(world: World) -> None:
    world.do(world.control.register())
    world.file.write_text("")
    world.script = [GONE]
    world.do(world.control.result(7, 0, ""))
    assert world.asked("result")[-1][0] == "http://two"
    world.file.write_text("http://three")
    world.script = [GONE]
    world.do(world.control.result(8, 0, ""))
    assert world.asked("result")[-1][0] == "http://three"


def test_a_final_report_is_given_up_after_its_patience(world: World) -> None:
    class Never:
        async def post(self, *_: Any) -> HttpResponse:
            await asyncio.Event().wait()
            raise AssertionError

    world.control._client = Never()  # type: ignore[assignment]
    for report in (
        world.control.refuse(7, "no", "", 0.01),
        world.control.failed("no", "", 0.01),
        world.control.send_report(IDLE, 0.01),
    ):
        assert world.do(report) is None


def test_closing_closes_its_connections(world: World) -> None:
    closed: list[bool] = []
    world.control._client = SimpleNamespace(close=lambda: closed.append(True))  # type: ignore[assignment]
    world.control.close()
    assert closed == [True]
