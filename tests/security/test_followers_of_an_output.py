"""A tenant follows its output on many connections. They cost the database next to nothing, and their number is limited."""

import contextlib
import http.client
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from fleet import eventually
from holdfast.api import auth
from holdfast.postgres.database import Database
from served_api import Stage

SOCKETS = 60
SECONDS = 2.0


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sent: list[str] = []
    rows = Database.rows

    async def counted(self: Database, text: str, *args: object) -> Any:
        sent.append(text)
        return await rows(self, text, *args)

    monkeypatch.setattr(Database, "rows", counted)
    return sent


@contextlib.contextmanager
def following(stage: Stage, claim: str, count: int) -> Iterator[list[http.client.HTTPResponse]]:
    with contextlib.ExitStack() as stack:
        answers = []
        for _ in range(count):
            connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=30)
            stack.callback(connection.close)
            connection.request("GET", f"/v1/claims/{claim}/output?follow=true", headers={"Authorization": "Bearer acme"})
            answers.append(connection.getresponse())
        yield answers


def test_sixty_followers_read_the_claim_only_now_and_then(stage: Stage, statements: list[str]) -> None:
    claim = stage.claim(lease="60s")["id"]
    with following(stage, claim, SOCKETS) as answers:
        assert {answer.status for answer in answers} == {200}
        eventually(lambda: sum(stage.wired.context.auth._streams.values()) == SOCKETS, 10, "all of them follow")
        statements.clear()
        begun = monotonic()
        eventually(lambda: monotonic() - begun > SECONDS, 10 * SECONDS, "they follow for a while")
        # Each reads every 3 s. Four reads per second each would be 480.
        rate = len(statements) / (monotonic() - begun)
        assert rate < SOCKETS / 2, f"{rate:.0f} statements per second"
        (stage.home / "output" / claim).write_bytes(b"the end\n")
        assert stage.ask("POST", f"/v1/claims/{claim}/cancel", {}, token="acme").status == 200
        assert {answer.read() for answer in answers} == {b"the end\n"}, "the end of the claim is signalled to all of them"


def test_a_token_may_not_follow_more_outputs_than_its_limit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.output.FOLLOWERS", 3)
    claim = stage.claim(lease="60s")["id"]
    with following(stage, claim, 3):
        eventually(lambda: sum(stage.wired.context.auth._streams.values()) == 3, 10, "all of them follow")
        refused = stage.ask("GET", f"/v1/claims/{claim}/output?follow=true", token="acme")
        assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (429, "too-many", "5")
        assert stage.ask("GET", f"/v1/claims/{claim}/output", token="acme").status == 200, "it may still be read"
    assert auth.FOLLOWERS > auth.STREAMS
