"""`explain` returns true and complete sentences in order. They name each obstacle and what to do about it."""

import re
from typing import Any

import pytest

from fleet import Answer
from holdfast.model.effect import Done
from holdfast.model.pool import PoolSpec
from served_api import DIRECT, Stage

MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})?"


def explained(stage: Stage, kind: str, name: str) -> list[str]:
    answer = stage.ask("GET", f"/v1/explain/{kind}/{name}")
    assert answer.status == 200, answer.raw
    return list(answer.json["sentences"])


def waiting(stage: Stage, count: int, **request: Any) -> list[dict[str, Any]]:
    """Makes claims on a pool without workers."""
    stage.do(stage.store.pools.put("p-empty", "empty", PoolSpec(mode="job", warm=0, max=5), "api"))
    return [stage.claim(pool="empty", command=["true"], key=f"k-{n}", wait="0s", **request) for n in range(count)]


def test_every_time_is_marked_as_utc(stage: Stage) -> None:
    claim = stage.claim(lease="60s")
    waits = waiting(stage, 1)[0]
    sentences = [
        *explained(stage, "claim", claim["id"]),
        *explained(stage, "claim", waits["id"]),
        *explained(stage, "worker", claim["worker"]),
        *explained(stage, "pool", "direct"),
    ]
    stage.ask("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]}, token="acme")
    sentences += explained(stage, "claim", claim["id"])
    moments = [(match.group(), sentence[match.end() :]) for sentence in sentences for match in re.finditer(MOMENT, sentence)]
    assert len(moments) > 12
    assert all(rest.startswith(" UTC") for _, rest in moments), sentences
    assert not [sentence for sentence in sentences if re.search(r"\d\d:\d\d:\d\d", sentence) and not re.search(MOMENT, sentence)]


@pytest.mark.parametrize(("count", "expected"), [(1, "1 claim waits, the oldest for "), (2, "2 claims wait, the oldest for ")])
def test_one_waits_and_two_wait(stage: Stage, count: int, expected: str) -> None:
    claims = waiting(stage, count)
    assert expected in "\n".join(explained(stage, "pool", "empty"))
    assert expected in "\n".join(explained(stage, "claim", claims[0]["id"]))


@pytest.mark.parametrize(
    ("live", "expected"),
    [(1, "1 of them belongs to a tenant that holds its cap."), (2, "2 of them belong to tenants that hold their cap.")],
)
def test_one_belongs_and_two_belong(stage: Stage, live: int, expected: str) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {"maxClaims": 1})
    stage.claim()
    waiting(stage, live)
    assert expected in explained(stage, "pool", "empty")


@pytest.mark.parametrize(
    ("failures", "expected"), [(1, "The last start failed: no room."), (2, "The last 2 starts failed: no room.")]
)
def test_one_start_failed_and_two_starts_failed(stage: Stage, failures: int, expected: str) -> None:
    for _ in range(failures):
        stage.do(stage.store.pools.trouble("p-agents", "no room", 60.0))
    assert expected in explained(stage, "pool", "agents")


def test_a_stopping_installation_is_named_and_matching_is_not_blamed_for_it(stage: Stage) -> None:
    stage.do(stage.store.fleet.stop_workers(True))
    claim = stage.claim(wait="0s")
    assert claim["state"] == "waiting"
    assert claim["reason"] == "the installation is being stopped with its workers: nothing is given out"
    stage.do(stage.store.db.rows("UPDATE holdfast.claim SET created_at = created_at - interval '1 minute'"))
    for sentences in (explained(stage, "claim", claim["id"]), explained(stage, "pool", "direct")):
        assert any(sentence.startswith("This installation is being stopped with its workers") for sentence in sentences), (
            sentences
        )
        assert not any("at fault" in sentence for sentence in sentences), sentences
    assert stage.ask("GET", "/v1/explain/pool/direct").json["facts"]["stopping"] is True
    stage.do(stage.store.fleet.stop_workers(False))
    assert any("at fault" in sentence for sentence in explained(stage, "pool", "direct"))


def test_a_draining_pool_is_named_and_the_new_one_of_its_name_is_meant(stage: Stage) -> None:
    claim = stage.claim()
    assert stage.ask("DELETE", "/v1/pools/direct").status == 200
    sentences = explained(stage, "pool", "direct")
    assert sentences[0].startswith("Pool direct (job) is draining: ")
    assert "The pool is being deleted: free workers go, busy ones finish, and claims that wait are refused." in sentences
    stage.do(stage.store.pools.put("p-new", "direct", DIRECT, "api"))
    sentences = explained(stage, "pool", "direct")
    assert sentences[0].startswith("Pool direct (job) is live: ")
    assert "An earlier pool of this name (p-direct) is still draining: 1 of its workers is held." in sentences
    assert claim["id"] in "\n".join(explained(stage, "worker", claim["worker"]))


def test_a_frozen_pool_shows_how_to_thaw_it(stage: Stage) -> None:
    stage.ask("POST", "/v1/pools/direct/freeze", {"reason": "looking"})
    assert (
        "The pool is frozen (looking): nothing is spawned and nothing is ended; `holdfast thaw direct` ends that."
        in explained(stage, "pool", "direct")
    )
    refused = retired(stage, "w-1")
    assert (refused.status, refused.json["code"]) == (409, "frozen")
    assert refused.json["detail"] == "pool 'direct' is frozen, so nothing in it is ended; `holdfast thaw direct` ends that"


def test_while_lost_commits_are_looked_for_nothing_is_retired_and_the_pool_shows_why(stage: Stage) -> None:
    stage.do(stage.store.recovery.begin("the timeline changed", 0))
    refused = retired(stage, "w-1")
    assert (refused.status, refused.json["code"]) == (409, "recovering")
    assert "try again in a minute" in refused.json["detail"]
    assert any(
        sentence.startswith("The database lost commits (the timeline changed)") for sentence in explained(stage, "pool", "direct")
    )


def test_a_worker_that_is_retiring_or_gone_is_explained_as_such(stage: Stage) -> None:
    assert retired(stage, "w-1").status == 200
    again = retired(stage, "w-1")
    assert (again.status, again.json["code"]) == (409, "retiring")
    assert again.json["detail"] == "worker w-1 is retiring already, because retired by an operator: its disk is slow"
    assert isinstance(stage.do(stage.store.workers.bury("w-1", "absent")), Done)
    gone = retired(stage, "w-1")
    assert (gone.status, gone.json["code"]) == (409, "gone")
    assert gone.json["detail"] == "worker w-1 is gone already: nothing is left of it to retire"


def test_a_held_worker_names_the_claim_that_must_end_first(stage: Stage) -> None:
    claim = stage.claim()
    held = retired(stage, claim["worker"])
    assert (held.status, held.json["code"]) == (409, "busy")
    assert f"is held by claim {claim['id']}" in held.json["detail"]


def retired(stage: Stage, worker: str) -> Answer:
    return stage.ask("POST", f"/v1/workers/{worker}/retire", {"reason": "its disk is slow"})


def test_after_a_retry_a_user_sees_how_long_the_claim_waited_for_its_last_worker(stage: Stage) -> None:
    stage.do(stage.store.pools.put("p-retry", "retry", DIRECT, "api"))
    stage.do(stage.spawn("p-retry", "w-first"))
    claim = stage.claim(pool="retry", retry="lost")
    ran = "UPDATE holdfast.claim SET created_at = created_at - interval '1 hour' WHERE id = $1 RETURNING true"
    assert stage.do(stage.store.db.value(ran, claim["id"]))
    died = stage.do(stage.store.claims.requeue(claim["id"], claim["fence"], dead=True, reason="its pod is gone"))
    assert died == Done()
    assert "has been waiting for 1h" not in explained(stage, "claim", claim["id"])[0]
    stage.do(stage.spawn("p-retry", "w-second"))
    (pair,) = stage.do(stage.store.claims.match("p-retry", [], 10)).pairs
    stage.do(stage.store.claims.offer([(pair.claim, pair.fence, False)]))
    shown = stage.ask("GET", f"/v1/claims/{claim['id']}").json
    assert (shown["state"], shown["worker"], shown["attempts"]) == ("active", "w-second", 2)
    assert 0 <= shown["timings"]["wait"] < 600, "the hour in which the first worker was held is no waiting"
    assert not [sentence for sentence in explained(stage, "claim", claim["id"]) if sentence.startswith("It waited 1h")]


def test_who_explains_a_pool_worker_or_claim_sees_that_the_brake_holds(stage: Stage) -> None:
    claim = stage.claim(lease="60s")
    things = (("pool", "direct"), ("worker", claim["worker"]), ("claim", claim["id"]))
    for kind, name in things:
        assert stage.ask("GET", f"/v1/explain/{kind}/{name}").json["facts"]["braked"] is False
        assert not any("brake" in sentence for sentence in explained(stage, kind, name))
    tripped = "UPDATE holdfast.installation SET brake_tripped_at = holdfast.now(), brake_reason = '50 claims were ended'"
    stage.do(stage.store.db.rows(tripped))
    for kind, name in things:
        assert stage.ask("GET", f"/v1/explain/{kind}/{name}").json["facts"]["braked"] is True
        second = explained(stage, kind, name)[1]
        assert re.fullmatch(
            rf"The brake has been tripped for \d+m?s, since {MOMENT} UTC \(50 claims were ended\): neither surplus workers nor"
            r' claims whose time ran out are ended; `holdfast brake release --reason "…"` ends that\.',
            second,
        ), second
    seen = stage.ask("GET", f"/v1/explain/claim/{claim['id']}", token="acme").json["sentences"][1]
    assert "50 claims" not in seen, "the number of all tenants' claims is not for one tenant"
    assert seen.endswith("an operator has to release it.")
