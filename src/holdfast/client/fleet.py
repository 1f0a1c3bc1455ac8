"""The endpoints for operators: pools, workers, tenants, events, duties, replicas, the brake, recovery, tokens."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Unpack

import msgspec

from .answers import (
    Applied,
    Doctor,
    Duty,
    Event,
    Explanation,
    Identity,
    Page,
    Pool,
    Recovery,
    Replica,
    Tenant,
    Token,
    Worker,
)
from .endpoints import Endpoints, at, moment
from .errors import Denied, NotFound
from .events import EventOptions, event_params, watch_events

Cursor = str | int | None


class FleetEndpoints(Endpoints):
    # Pools

    async def list_pools(self, *, limit: int | None = None, cursor: Cursor = None) -> Page[Pool]:
        return await self.page(Page[Pool], at("pools"), {"limit": limit, "cursor": cursor})

    async def get_pool(self, name: str) -> Pool:
        return await self.ask(Pool, "GET", at("pools", name))

    async def put_pool(self, name: str, spec: Mapping[str, Any]) -> Pool:
        return await self.ask(Pool, "PUT", at("pools", name), body=spec)

    async def delete_pool(self, name: str) -> None:
        """Drains and deletes a pool: free workers end at once, busy ones finish."""
        # This is never repeated after a lost answer, because the name may belong to a new pool by then.
        await self.raw("DELETE", at("pools", name))

    async def scale(self, name: str, *, warm: int | None = None, max: int | None = None) -> Pool:
        """Changes the pool's size. What is left out stays as it is."""
        size = {field: count for field, count in (("warm", warm), ("max", max)) if count is not None}
        return await self.ask(Pool, "POST", at("pools", name, "scale"), body=size, safe=True)

    async def apply(self, objects: Sequence[Mapping[str, Any]], *, dry_run: bool = False) -> list[Applied]:
        """Creates or changes pools and tenants, all of them or none. An object is `{"kind": "WorkerPool" or "Tenant", "name": …,
        "spec": {…}}`. With `dry_run` the server only checks them and answers what would change. The request is repeated after a
        lost answer; then the results may be `unchanged`, because the first one was stored."""
        body = {"objects": list(objects), "dryRun": dry_run}
        return (await self.ask(Page[Applied], "POST", at("apply"), body=body, safe=True)).items

    async def freeze(self, name: str, *, reason: str) -> Pool:
        return await self.ask(Pool, "POST", at("pools", name, "freeze"), body={"reason": reason})

    async def thaw(self, name: str) -> Pool:
        return await self.ask(Pool, "POST", at("pools", name, "thaw"), body={})

    # Workers

    async def list_workers(
        self,
        *,
        pool: str | None = None,
        tenant: str | None = None,
        state: str | None = None,
        since: str | datetime | None = None,
        limit: int | None = None,
        cursor: Cursor = None,
    ) -> Page[Worker]:
        """Returns a page of workers, newest first. `since` is a duration such as `10m` (so long ago) or a time."""
        params = {"pool": pool, "tenant": tenant, "state": state, "since": moment(since), "limit": limit, "cursor": cursor}
        return await self.page(Page[Worker], at("workers"), params)

    async def get_worker(self, worker: str) -> Worker:
        return await self.ask(Worker, "GET", at("workers", worker))

    async def retire(self, worker: str, *, reason: str) -> Worker:
        """Retires a free worker. Raises Conflict if it is held."""
        return await self.ask(Worker, "POST", at("workers", worker, "retire"), body={"reason": reason})

    # Tenants

    async def list_tenants(self, *, limit: int | None = None, cursor: Cursor = None) -> Page[Tenant]:
        return await self.page(Page[Tenant], at("tenants"), {"limit": limit, "cursor": cursor})

    async def get_tenant(self, name: str) -> Tenant:
        return await self.ask(Tenant, "GET", at("tenants", name))

    async def put_tenant(self, name: str, spec: Mapping[str, Any]) -> Tenant:
        return await self.ask(Tenant, "PUT", at("tenants", name), body=spec)

    async def delete_tenant(self, name: str) -> None:
        """Deletes a tenant's limits and tokens. Raises Conflict while it has live or waiting claims."""
        # This is never repeated after a lost answer, because the name may belong to a new tenant by then.
        await self.raw("DELETE", at("tenants", name))

    # History

    async def list_events(
        self,
        *,
        after: Cursor = None,
        before: Cursor = None,
        limit: int | None = None,
        newest: bool = False,
        **filters: Unpack[EventOptions],
    ) -> Page[Event]:
        """Returns the first events after `after`, oldest first. With `newest` or `before`, returns the last events (before that
        cursor), also oldest first; `page.previous` is then the cursor of the events before them."""
        first = {"newest": True} if newest else {"before": before}
        params = {"after": after, "limit": limit, **event_params(filters)}
        return await self.page(Page[Event], at("events"), params, cursor="after", first=first)

    async def watch_events(self, *, after: Cursor = None, **filters: Unpack[EventOptions]) -> AsyncGenerator[Event, None]:
        """Yields events as they happen, forever. After a broken connection it resumes after the last event it received."""
        async for data in watch_events(self.transport, after, event_params(filters)):
            yield msgspec.json.decode(data, type=Event)

    # The state of the system

    async def explain(self, kind: Literal["pool", "worker", "claim"], name: str) -> Explanation:
        return await self.ask(Explanation, "GET", at("explain", kind, name))

    async def list_duties(self) -> Page[Duty]:
        return await self.page(Page[Duty], at("duties"))

    async def list_replicas(self) -> Page[Replica]:
        return await self.page(Page[Replica], at("replicas"))

    async def brake(self) -> dict[str, Any]:
        return await self.ask(dict[str, Any], "GET", at("brake"))

    async def release_brake(self, *, reason: str, tenant: str | None = None) -> dict[str, Any]:
        """Releases the brake of the whole fleet, or that of a tenant. Raises Conflict if it is not tripped."""
        body = {"reason": reason} | ({} if tenant is None else {"tenant": tenant})
        return await self.ask(dict[str, Any], "POST", at("brake", "release"), body=body)

    async def set_brake(self, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Sets the brake's limits. A limit that is left out gets its default."""
        return await self.ask(dict[str, Any], "PUT", at("brake"), body=limits)

    async def recovery(self, *, limit: int | None = None, cursor: Cursor = None) -> Recovery:
        """Returns whether a recovery is in progress, and which workers are unconfirmed."""
        return await self.page(Recovery, at("recovery"), {"limit": limit, "cursor": cursor})

    async def decide_recovery(self, worker: str, decision: Literal["confirm", "give-up"], *, reason: str) -> Worker:
        """Confirms an unconfirmed worker, or gives it up. Raises Conflict if there is nothing to decide about it."""
        return await self.ask(Worker, "POST", at("recovery", worker), body={"decision": decision, "reason": reason})

    async def doctor(self) -> Doctor:
        return await self.ask(Doctor, "GET", at("doctor"))

    async def metrics(self) -> str:
        return (await self.raw("GET", "/metrics")).decode()

    # Tokens

    async def list_tokens(self) -> Page[Token]:
        return await self.page(Page[Token], at("tokens"))

    async def create_token(self, name: str, role: str, *, tenant: str | None = None, expires_in: str | None = None) -> Token:
        """Creates a token. No later answer contains the token itself."""
        body = {"name": name, "role": role, "tenant": tenant, "expiresIn": expires_in}
        body = {field: value for field, value in body.items() if value is not None}
        return await self.ask(Token, "POST", at("tokens"), body=body)

    async def revoke_token(self, token: str, *, cancel: bool = False) -> list[str]:
        """Revokes a token. With `cancel`, also ends the claims that were made with it, and returns them."""
        answer = await self.raw("DELETE", at("tokens", token), params={"cancel": True} if cancel else None)
        return list(msgspec.json.decode(answer)["cancelled"]) if answer else []

    async def whoami(self) -> Identity:
        """Returns the role and tenant of our token. On a server without /v1/me, the role is derived from what we may read."""
        try:
            return await self.ask(Identity, "GET", at("me"))
        except NotFound:
            pass
        for path, role in ((at("tokens"), "admin"), (at("duties"), "operator")):
            try:
                await self.raw("GET", path, params={"limit": 1})
                return Identity(role=role)
            except Denied as error:
                if error.status == 401:
                    raise
        claims = await self.ask(Page[dict[str, Any]], "GET", at("claims"), params={"limit": 1})
        return Identity(role="tenant", tenant=claims.items[0].get("tenant") if claims.items else None)
