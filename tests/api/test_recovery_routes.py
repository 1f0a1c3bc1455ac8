"""The workers that lost commits left unconfirmed, over HTTP, in the SDK and on the command line."""

import sys
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.client import Conflict, SyncClient
from holdfast.model.effect import Done
from postgres.store_steps import agent_report, ask
from served_api import Stage

BECAUSE = {"reason": "looked at it"}


@pytest.fixture
def left(stage: Stage) -> Stage:
    """Makes the database lose commits. Recovery has ended, and no worker has reported since."""

    async def recover() -> None:
        assert (await stage.store.claims.match("p-agents", [ask("acme")], 1)).pairs
        await stage.store.recovery.begin("restored", 0)
        assert await stage.store.recovery.end() == Done()

    stage.do(recover())
    return stage


def items(stage: Stage, **query: Any) -> dict[str, dict[str, Any]]:
    asked = "&".join(f"{key}={value}" for key, value in query.items())
    answer = stage.ask("GET", f"/v1/recovery?{asked}", token="operator")
    assert answer.status == 200, answer.raw
    return {item["worker"]: item for item in answer.json["items"]}


def decided(stage: Stage, worker: str, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = stage.ask("POST", f"/v1/recovery/{worker}", body, token="operator")
    return answer.status, dict(answer.json)


def test_a_recovery_in_progress_shows_why_and_since_when(stage: Stage) -> None:
    calm = stage.ask("GET", "/v1/recovery").json
    assert calm == {"recovering": False, "since": None, "reason": None, "items": [], "next": None}
    stage.do(stage.store.recovery.begin("the timeline changed", 0))
    answer = stage.ask("GET", "/v1/recovery").json
    assert (answer["recovering"], answer["reason"]) == (True, "the timeline changed")
    assert answer["since"]
    status, problem = decided(stage, "w-1", decision="confirm", **BECAUSE)
    assert (status, problem["code"]) == (409, "recovering")


def test_each_unconfirmed_worker_is_listed_with_its_claim_and_what_can_be_done(left: Stage) -> None:
    shown = items(left)
    assert set(shown) == {"w-1", "w-2", "w-3", "w-4", "w-5", "w-6", "w-agent"}
    free, held = shown["w-1"], shown["w-agent"]
    assert (free["pool"], free["state"], free["claim"]) == ("direct", "warm", None)
    assert (free["confirm"], free["give_up"]) == ("it may be given out again", "it retires")
    assert (held["state"], held["claim_state"], held["tenant"]) == ("held", "assigned", "acme")
    assert "it ends as lost" in held["give_up"], "it may have run"
    assert held["since"]
    assert list(items(left, limit=2)) == ["w-1", "w-2"]
    assert list(items(left, limit=2, cursor="w-2")) == ["w-3", "w-4"]


def test_a_worker_that_is_confirmed_serves_what_waits(left: Stage) -> None:
    waiting = left.claim(wait="0s")
    assert waiting["state"] == "waiting"
    assert left.ask("GET", "/v1/workers/w-1").json["unconfirmed"] is True
    status, worker = decided(left, "w-1", decision="confirm", **BECAUSE)
    assert (status, worker["unconfirmed"]) == (200, False)
    served = left.ask("GET", f"/v1/claims/{waiting['id']}?wait=10s").json
    assert (served["state"], served["worker"]) == ("active", "w-1")
    assert "w-1" not in items(left)
    status, problem = decided(left, "w-1", decision="give-up", **BECAUSE)
    assert (status, problem["code"]) == (409, "confirmed")
    assert "holdfast recover" in problem["detail"]


def test_a_worker_that_is_given_up_takes_its_claim_with_it(left: Stage) -> None:
    claim = items(left)["w-agent"]["claim"]
    status, worker = decided(left, "w-agent", decision="give-up", reason="its machine burned")
    assert (status, worker["state"]) == (200, "retiring")
    ended = left.ask("GET", f"/v1/claims/{claim}").json
    assert (ended["state"], ended["outcome"]) == ("ended", "lost")
    assert "its machine burned" in ended["reason"]
    kinds = [event["kind"] for event in left.ask("GET", "/v1/events?worker=w-agent").json["items"]]
    assert {"claim.ended", "worker.given_up"} <= set(kinds)
    assert 'holdfast_claim_ends_total{how="force"} 1.0' in left.ask("GET", "/metrics").raw.decode()
    status, problem = decided(left, "w-agent", decision="confirm", **BECAUSE)
    assert (status, problem["code"]) == (409, "retiring")


@pytest.mark.parametrize("decision", ["confirm", "give-up"])
def test_a_worker_whose_claim_was_cancelled_stays_listed_until_it_is_decided(left: Stage, decision: str) -> None:
    claim = items(left)["w-agent"]["claim"]
    assert left.ask("POST", f"/v1/claims/{claim}/cancel", {}, token="acme").status == 200
    shown = items(left)["w-agent"]
    assert (shown["state"], shown["claim"], shown["tenant"]) == ("retiring", None, "acme")
    assert shown["confirm"] == shown["give_up"] == "its pod is deleted"
    status, worker = decided(left, "w-agent", decision=decision, **BECAUSE)
    assert (status, worker["state"], worker["unconfirmed"]) == (200, "retiring", False)
    assert "w-agent" not in items(left)


@pytest.mark.parametrize(
    ("worker", "body", "status", "field"),
    [
        ("w-none", {"decision": "confirm", **BECAUSE}, 404, None),
        ("w-1", {"decision": "confirm"}, 422, "reason"),
        ("w-1", {"decision": "confirm", "reason": ""}, 422, "reason"),
        ("w-1", {"decision": "confirm", "reason": "two\nlines"}, 422, "reason"),
        ("w-1", {"decision": "forget", **BECAUSE}, 422, "decision"),
        ("w-1", BECAUSE, 422, "decision"),
        ("w-1", {"decision": "confirm", "force": True, **BECAUSE}, 422, "force"),
    ],
)
def test_a_bad_decision_is_refused_and_changes_nothing(
    left: Stage, worker: str, body: dict[str, Any], status: int, field: str | None
) -> None:
    before = left.rows()
    got, problem = decided(left, worker, **body)
    assert got == status
    assert [error["field"] for error in problem["errors"]] == ([field] if field else [])
    assert (left.rows(), "w-1" in items(left)) == (before, True)


def test_tenants_neither_see_nor_decide(left: Stage) -> None:
    for method, path, body in (
        ("GET", "/v1/recovery", None),
        ("POST", "/v1/recovery/w-1", {"decision": "confirm", **BECAUSE}),
    ):
        assert left.ask(method, path, body, token="acme").status == 403
        assert left.ask(method, path, body, token=None).status == 401
    assert "w-1" in items(left)


@pytest.mark.parametrize("decision", ["confirm", "give-up"])
def test_a_worker_whose_agent_reports_another_claim_is_shown_and_left_alone(
    left: Stage, capsys: pytest.CaptureFixture[str], decision: str
) -> None:
    beat = "UPDATE holdfast.installation SET recovery_heard = recovery_heard - interval '1 s'"
    left.do(left.store.db.rows(beat))
    busy = agent_report("w-agent", doing="running", claim="c-lost", fence=1, tenant="acme")
    left.do(left.store.workers.beat([busy]))
    shown = items(left)["w-agent"]
    assert (shown["doing"], shown["reported_claim"]) == ("running", "c-lost")
    assert shown["confirm"] == shown["give_up"] == "nothing: its agent reports another claim"
    assert "c-lost" in run(left, capsys)[1]
    status, problem = decided(left, "w-agent", decision=decision, **BECAUSE)
    assert (status, problem["code"]) == (409, "busy")
    assert "w-agent" in items(left)


def test_explain_and_metrics_name_what_is_left(left: Stage) -> None:
    sentences = left.ask("GET", "/v1/explain/worker/w-1").json["sentences"]
    assert any("has been unconfirmed" in sentence and "holdfast recover" in sentence for sentence in sentences)
    assert 'holdfast_workers_unconfirmed{pool="direct"} 6.0' in left.ask("GET", "/metrics").raw.decode()


def test_the_sdk_lists_and_decides(left: Stage) -> None:
    with SyncClient(left.url, "operator") as client:
        state = client.recovery()
        assert (state.recovering, len(state.items)) == (False, 7)
        assert client.decide_recovery("w-1", "confirm", reason="looked").state == "warm"
        with pytest.raises(Conflict, match="nothing to decide"):
            client.decide_recovery("w-1", "confirm", reason="looked")


def run(stage: Stage, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code: object = 0
    try:
        main(["--url", stage.url, "--token", "operator", "recover", *arguments])
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    captured = capsys.readouterr()
    return code if isinstance(code, int) else 0, captured.out, captured.err


def test_the_command_shows_what_is_left_and_decides(left: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(left, capsys)
    assert code == 0
    assert "no recovery is under way" in out
    assert "w-agent" in out
    assert "it may be given out again" in out
    assert run(left, capsys, "w-1", "--confirm", "--reason", "idle")[:2] == (0, "worker w-1 confirmed; it is warm\n")
    assert run(left, capsys, "w-2", "--give-up", "--reason", "gone")[:2] == (0, "worker w-2 given up; it is retiring\n")
    code, _, err = run(left, capsys, "w-1", "--give-up", "--reason", "gone")
    assert (code, "nothing to decide" in err) == (1, True)
    assert set(items(left)) == {"w-3", "w-4", "w-5", "w-6", "w-agent"}


def test_the_command_shows_that_nothing_is_left_and_why_everything_waits(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stage, capsys)[1] == "no recovery is under way\nevery worker is confirmed\n"
    stage.do(stage.store.recovery.begin("the timeline changed", 0))
    assert "the timeline changed; it ends by itself" in run(stage, capsys)[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("w-1",), "either --confirm or --give-up"),
        (("w-1", "--confirm", "--give-up", "--reason", "x"), "either --confirm or --give-up"),
        (("w-1", "--confirm"), "--reason is required"),
        (("w-1", "--give-up", "--reason", " "), "--reason is required"),
        (("--confirm",), "need the worker"),
    ],
)
def test_the_command_refuses_half_a_decision(
    left: Stage, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    code, _, err = run(left, capsys, *arguments)
    assert (code, expected in err) == (2, True), err
    assert len(items(left)) == 7
