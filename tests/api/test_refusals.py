"""Every route refuses bad input with the field and the reason, and changes nothing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from refused_requests import AGENTS, BIG, CLAIMS, OTHERS, ROLES, Bad

from fleet import Answer
from served_api import Stage

HIDDEN = "hunter2-do-not-show"


@pytest.mark.parametrize("table", [CLAIMS, OTHERS, AGENTS, ROLES], ids=["claims", "others", "agents", "roles"])
def test_refused_by_name_and_nothing_changed(stage: Stage, table: list[Bad], subtests: pytest.Subtests) -> None:
    claim = seen(stage, stage.claim()["id"])
    before = stage.rows()
    for bad in table:
        with subtests.test(str(bad)):
            path = bad.path.replace("{active}", claim["id"]).replace("{worker}", claim["worker"])
            token = stage.agent_token() if table is AGENTS else bad.token
            answer = stage.ask(bad.method, path, bad.body, token=token, raw=bad.raw)
            refusal(answer, bad.status)
            if bad.field is not None:
                fields = {error["field"]: error["reason"] for error in answer.json["errors"]}
                assert bad.field in fields, answer.raw
            assert bad.detail in answer.json["detail"] + json.dumps(answer.json["errors"]), answer.raw
    assert stage.rows() == before
    assert seen(stage, claim["id"]) == claim


def seen(stage: Stage, claim: str) -> dict[str, Any]:
    """Returns a claim without the one time that changes while no replica beats."""
    return {**stage.ask("GET", f"/v1/claims/{claim}").json, "max_until": None}


def refusal(answer: Answer, status: int) -> None:
    assert answer.status == status, (answer.status, answer.raw)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json
    assert problem["status"] == status
    assert problem["detail"]
    assert problem["type"] == f"urn:holdfast:{problem['code']}"


# Sizes


def big_body() -> bytes:
    return b'{"pool":"direct","payload":"' + b"x" * BIG + b'"}'


def test_a_body_beyond_64_kb_is_refused_announced_or_in_chunks(stage: Stage) -> None:
    before = stage.rows()
    refusal(stage.ask("POST", "/v1/claims", raw=big_body()), 413)

    def pieces() -> Iterator[bytes]:
        for start in range(0, BIG + 40, 8192):
            yield big_body()[start : start + 8192]

    refusal(stage.ask("POST", "/v1/claims", raw=pieces()), 413)
    assert stage.rows() == before


def test_a_body_of_almost_64_kb_is_taken_in_chunks_too(stage: Stage) -> None:
    body = json.dumps({"pool": "direct", "wait": "5s", "payload": "x" * (BIG - 100)}).encode()
    assert stage.ask("POST", "/v1/claims", raw=iter([body[:100], body[100:]])).status == 201


def test_a_head_without_end_is_cut_off(stage: Stage) -> None:
    answer = stage.send_raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 2_000_000)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 "), answer[:200]  # the reset may arrive before the answer
    many = b"".join(b"X-%d: y\r\n" % n for n in range(200_000))
    answer = stage.send_raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + many)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 "), answer[:200]
    assert stage.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize("line", [b"GET /v1/claims/\xff\xfe HTTP/1.1", b"GET http://[bad HTTP/1.1", b"\x00\x01\x02", b"GET"])
def test_what_is_not_http_is_answered_and_the_server_lives(stage: Stage, line: bytes) -> None:
    answer = stage.send_raw(line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer == b"" or 400 <= int(answer.split()[1]) < 500, answer[:200]
    assert stage.ask("GET", "/healthz").status == 200


# Tokens


def test_a_revoked_token_is_refused_as_soon_as_the_cache_lets_go(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage.ask("POST", "/v1/tokens", {"name": "x", "role": "operator"}).json
    assert stage.ask("GET", "/v1/me", token=made["token"]).status == 200
    assert stage.ask("DELETE", f"/v1/tokens/{made['id']}").status == 204
    now = stage.wired.context.auth._clock()  # the clock is 5 s later
    monkeypatch.setattr(stage.wired.context.auth, "_clock", lambda: now + 5.1)
    refusal(stage.ask("GET", "/v1/me", token=made["token"]), 401)


def test_guesses_do_not_push_out_valid_tokens(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.auth.CACHE_SIZE", 20)
    assert stage.ask("GET", "/v1/me", token="acme").status == 200
    for n in range(50):
        refusal(stage.ask("GET", "/v1/me", token=f"guess-{n}"), 401)
    known = stage.wired.context.auth._known
    assert len(known) <= 20
    assert [caller.id for _, caller in known.values() if caller] == ["t-acme"]


# Secrets


@pytest.mark.parametrize(
    "secrets",
    [
        {"A": HIDDEN + "\x00"},
        {"A": [HIDDEN]},
        {"A": {HIDDEN: HIDDEN}},
        HIDDEN,
        [HIDDEN],
        {"A": HIDDEN * 3000},
        {"A B": HIDDEN},
    ],
    ids=["nul", "list", "object", "string", "array", "long", "bad name"],
)
def test_a_refused_secret_is_not_shown(stage: Stage, secrets: Any, capfd: pytest.CaptureFixture[str]) -> None:
    answer = stage.ask("POST", "/v1/claims", {"pool": "agents", "secrets": secrets})
    refusal(answer, 413 if len(str(secrets)) > BIG else 422)
    assert HIDDEN.encode() not in answer.raw
    with_key = stage.ask("POST", "/v1/claims", {"pool": "agents", "secrets": secrets, "retry": "lost"})
    assert HIDDEN.encode() not in with_key.raw
    assert HIDDEN not in "".join(capfd.readouterr())


def test_what_is_not_json_is_not_shown(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    for raw in (b'{"secrets":{"A":"%s",}}', b'{"secrets":{"A":"%s\xff"}}', b'{"secrets":{"A":"%s\\ud800"}}'):
        answer = stage.ask("POST", "/v1/claims", raw=raw % HIDDEN.encode())
        refusal(answer, 400)
        assert HIDDEN.encode() not in answer.raw
    assert HIDDEN not in "".join(capfd.readouterr())


# Reports of agents are always accepted, because an agent repeats a result until it is accepted


def test_an_agents_reason_is_made_one_line_and_cut_never_refused(stage: Stage) -> None:
    reason = "boot\nfailed\x1b[2J" + "x" * 5000
    assert stage.ask("POST", "/v1/worker/failed", {"reason": reason}, token=stage.agent_token()).status == 204
    stored = stage.ask("GET", "/v1/workers/w-agent").json["reason"]
    assert stored.startswith("its agent gave up: boot failed\\x1b[2Jxxx")
    assert stored.isprintable()
    assert len(stored) < 600
