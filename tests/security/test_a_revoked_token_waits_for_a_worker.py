"""A token is revoked while its request waits. The request gets no worker, and `--cancel` ends what the token made before."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from fleet import Answer, eventually
from holdfast.wiring import wire
from served_api import KEY, Stage


def waiting(stage: Stage) -> list[dict[str, object]]:
    return list(stage.ask("GET", "/v1/claims?state=waiting").json["items"])


def test_a_request_that_waits_with_a_revoked_token_is_refused_and_its_claim_ends(stage: Stage) -> None:
    for _ in range(6):
        stage.claim(token="rival")  # every worker of the pool is busy now

    def ask() -> Answer:
        return stage.ask("POST", "/v1/claims", {"pool": "direct", "wait": "30s"}, token="acme")

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        [claim] = eventually(lambda: waiting(stage), 10, "the request waits")
        assert stage.ask("DELETE", "/v1/tokens/t-acme").status == 204
        answer = asking.result(20)  # long before its wait is over
    assert (answer.status, answer.json["code"]) == (401, "unauthenticated")
    found = stage.ask("GET", f"/v1/claims/{claim['id']}").json
    assert (found["state"], found["outcome"], found["reason"]) == (
        "ended",
        "cancelled",
        "its token was revoked, or expired, while its request waited",
    )
    event = stage.ask("GET", "/v1/events?newest=true&limit=1&kind=token").json["items"][0]
    assert (event["kind"], event["tenant"], event["actor"]["id"], event["data"]) == (
        "token.revoked", "acme", "t-admin", {"token": "t-acme", "name": "acme", "role": "tenant"},
    )  # fmt: skip


def test_another_replica_refuses_the_token_without_waiting_for_its_cache(stage: Stage) -> None:
    async def elsewhere() -> bool:
        another = wire(stage.store, stage.wired.cluster, key=KEY, url="http://127.0.0.1:2").context
        another.auth._clock = lambda: 1.0  # nothing in its cache expires
        notices = await stage.store.listen()
        assert (await anext(notices))[0] == "reset"  # it listens from now on
        assert await another.auth.still("Bearer acme")
        await stage.store.tokens.revoke("t-acme")
        another.signals.notice(*await asyncio.wait_for(anext(notices), 10))
        await notices.close()
        assert await another.auth.still("Bearer rival")
        return await another.auth.still("Bearer acme")

    assert not stage.do(elsewhere())


def test_claims_that_were_answered_go_on_and_with_cancel_all_that_the_token_made_end(stage: Stage) -> None:
    stage.do(stage.store.tokens.make("t-acme-2", "another hash", "second", "tenant", "acme", None))
    active, queued = stage.claim(), stage.claim(pool="agents", command=["true"], wait="0s")
    others = stage.claim(token="admin", tenant="acme")
    assert stage.ask("DELETE", "/v1/tokens/t-acme").status == 204
    states = [stage.ask("GET", f"/v1/claims/{claim['id']}").json["state"] for claim in (active, queued, others)]
    assert states == ["active", "assigned", "active"]
    # The token is revoked already. Its claims are found all the same, so that this can be repeated after a lost answer.
    answer = stage.ask("DELETE", "/v1/tokens/t-acme?cancel=true")
    assert (answer.status, answer.json) == (200, {"id": "t-acme", "cancelled": sorted([active["id"], queued["id"]])})
    found = [stage.ask("GET", f"/v1/claims/{claim['id']}").json for claim in (active, queued, others)]
    assert [(claim["outcome"], claim["reason"]) for claim in found[:2]] == [("cancelled", "its token t-acme was revoked")] * 2
    assert found[2]["state"] == "active", "another token made it"
    assert stage.ask("DELETE", "/v1/tokens/t-acme?cancel=true").status == 404
