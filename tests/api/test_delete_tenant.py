"""A tenant is deleted with its tokens, but never while it has claims that have not ended."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.api.problems import Problem
from holdfast.wiring import wire
from served_api import KEY, Stage


def delete(stage: Stage, name: str, token: str = "admin") -> tuple[int, str]:
    answer = stage.ask("DELETE", f"/v1/tenants/{name}", token=token)
    return answer.status, json.loads(answer.raw)["detail"] if answer.raw else ""


def known(stage: Stage) -> list[str]:
    return [tenant["name"] for tenant in stage.ask("GET", "/v1/tenants").json["items"]]


def test_deleting_a_tenant_removes_its_limits_and_its_tokens_stop_working_at_once(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {"maxClaims": 3})
    assert stage.ask("GET", "/v1/me", token="acme").status == 200  # the token is in the cache from now on
    assert delete(stage, "acme") == (204, "")
    assert stage.ask("GET", "/v1/me", token="acme").status == 401
    assert stage.ask("GET", "/v1/me", token="rival").status == 200
    assert known(stage) == []
    assert [token["tenant"] for token in stage.ask("GET", "/v1/tokens").json["items"] if token["role"] == "tenant"] == ["rival"]
    event = stage.ask("GET", "/v1/events?newest=true&limit=1").json["items"][0]
    assert (event["kind"], event["tenant"], event["reason"]) == ("tenant.deleted", "acme", "tokens deleted with it: 1")


def test_the_tokens_of_a_deleted_tenant_stop_working_at_other_replicas_without_waiting_for_their_cache(stage: Stage) -> None:
    async def elsewhere() -> None:
        another = wire(stage.store, stage.wired.cluster, key=KEY, url="http://127.0.0.1:2").context
        another.auth._clock = lambda: 1.0  # nothing in its cache expires
        notices = await stage.store.listen()
        assert (await anext(notices))[0] == "reset"  # it listens from now on
        assert (await another.auth.caller("Bearer acme")).tenant == "acme"
        assert (await another.auth.caller("Bearer rival")).tenant == "rival"
        await stage.store.pools.delete_tenant("acme")
        another.signals.notice(*await asyncio.wait_for(anext(notices), 10))
        await notices.close()
        with pytest.raises(Problem, match="not known here"):
            await another.auth.caller("Bearer acme")
        assert (await another.auth.caller("Bearer rival")).tenant == "rival"

    stage.do(elsewhere())


def test_a_token_that_is_read_while_its_tenant_is_deleted_is_not_remembered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth, read = stage.wired.context.auth, stage.store.tokens.by_hash

    async def deleted_after_the_read(hash_: str) -> Any:
        found = await read(hash_)
        monkeypatch.setattr(stage.store.tokens, "by_hash", read)
        await stage.store.pools.delete_tenant("acme")
        auth.forget_tenants({"acme"})
        return found

    monkeypatch.setattr(stage.store.tokens, "by_hash", deleted_after_the_read)
    stage.ask("GET", "/v1/me", token="acme")
    assert stage.ask("GET", "/v1/me", token="acme").status == 401


def test_a_tenant_with_live_or_waiting_claims_is_not_deleted(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {})
    live = stage.claim()
    assigned, waiting = (stage.claim(pool="agents", command=["true"], wait="0s") for _ in range(2))
    before = stage.rows()
    status, detail = delete(stage, "acme")
    assert status == 409
    assert "tenant 'acme' has 2 live and 1 waiting claims; end them first" in detail
    assert "holdfast get claims --tenant acme" in detail
    assert stage.rows() == before
    assert stage.ask("GET", "/v1/me", token="acme").status == 200
    for claim in (live, assigned, waiting):
        assert stage.ask("POST", f"/v1/claims/{claim['id']}/cancel", {}, token="acme").status == 200
    assert delete(stage, "acme") == (204, "")


def test_a_tenant_that_has_only_tokens_is_deleted(stage: Stage) -> None:
    assert delete(stage, "rival") == (204, "")
    assert stage.ask("GET", "/v1/me", token="rival").status == 401


def test_a_tenant_that_does_not_exist_is_answered_with_the_nearest(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/globex", {})
    before = stage.rows()
    assert delete(stage, "globx") == (404, "there is no tenant 'globx'; did you mean 'globex'?")
    assert stage.rows() == before


def test_only_admins_delete_tenants(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {})
    for token in ("operator", "acme"):
        assert delete(stage, "acme", token)[0] == 403
    assert known(stage) == ["acme"]


def test_what_was_parked_for_a_deleted_tenant_retires_at_once(stage: Stage) -> None:
    """Otherwise a tenant that is created later under the same name would get a worker with the data of the deleted one."""
    park = (
        "UPDATE holdfast.worker SET state = 'parked', tenant = $2, parked_since = holdfast.now(),"
        " parked_heard = holdfast.heard(), park_ttl = interval '1 hour' WHERE id = $1"
    )
    for worker, tenant in (("w-1", "acme"), ("w-2", "rival")):
        stage.do(stage.store.db.rows(park, worker, tenant))
    assert delete(stage, "acme") == (204, "")
    states = {worker["id"]: worker["state"] for worker in stage.ask("GET", "/v1/workers?pool=direct").json["items"]}
    assert (states["w-1"], states["w-2"]) == ("retiring", "parked")
