"""The claims, output and events of the fake server."""

import asyncio
import base64
import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from holdfast.model.duration import seconds

CLAIM_FIELDS = {
    *("pool", "tenant", "key", "command", "payload", "env", "secrets", "priority", "wait", "deadline"),
    *("lease", "maxDuration", "parkTTL", "retry"),
}
LINES = "application/x-ndjson"


def now() -> datetime:
    return datetime.now(UTC)


def problem(status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None, **headers: str) -> web.Response:
    body = {"type": f"x/{code}", "title": code, "status": status, "detail": detail, "code": code}
    body["errors"] = errors or []
    return web.json_response(body, status=status, content_type="application/problem+json", headers=headers)


class FakeClaims:
    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.outputs: dict[str, bytes] = {}
        self.events: list[dict[str, Any]] = []
        self.serves = True  # whether claims become active at once
        self.ends_at_once: dict[str, Any] | None = None  # how a job ends as soon as it is active
        self.first_output = b""
        self.keeps = 1 << 30  # bytes of an output that are kept; the rest is dropped
        self.speaks_lines = False  # whether it marks the streams of an output, as releases since decision 0019 do
        self.lease = 60.0
        self._changed = asyncio.Condition()

    def add_claim_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/claims", self._claim)
        router.add_get("/v1/claims/{id}", self._get_claim)
        router.add_post("/v1/claims/{id}/{verb:renew|release|cancel}", self._act)
        router.add_get("/v1/claims/{id}/output", self._output)
        router.add_get("/v1/events", self._events)

    async def _claim(self, request: web.Request) -> web.Response:
        body = await request.json()
        unknown = sorted(set(body) - CLAIM_FIELDS)
        if unknown:
            return problem(422, "invalid", "unknown field", [{"field": unknown[0], "reason": "unknown field"}])
        if body["pool"] not in ("linux", "notebook"):
            return problem(404, "unknown-pool", f"no pool {body['pool']!r}; did you mean 'linux'?")
        same = {name: value for name, value in body.items() if name != "wait"}
        if (key := body.get("key")) in self.keys:
            claim = self.claims[self.keys[key]]
            if self.bodies[claim["id"]] != same:
                return problem(409, "key-conflict", f"the key {key!r} names another request")
            return web.json_response(claim)
        claim = self._new(body)
        self.bodies[claim["id"]] = same
        if key:
            self.keys[key] = claim["id"]
        return web.json_response(claim, status=201 if claim["state"] == "active" else 202)

    def _new(self, body: dict[str, Any]) -> dict[str, Any]:
        number = len(self.claims) + 1
        claim: dict[str, Any] = {
            "id": f"c-{number}",
            "state": "waiting",
            "reason": "0 of 8 workers free; 8 held",
        }
        claim |= {
            "pool": body["pool"],
            "tenant": body.get("tenant", "default"),
            "key": body.get("key"),
            "attempts": 0,
        }
        claim |= {"outcome": None, "exit_code": None, "created_at": now().isoformat(), "a_newer_field": 1}
        self.claims[claim["id"]] = claim
        self.outputs[claim["id"]] = self.first_output
        if self.serves:
            claim.update(self.active(number, body["pool"] == "notebook"))
            if self.ends_at_once is not None:
                claim.update(state="ended", ended_at=now().isoformat(), **self.ends_at_once)
        return claim

    def active(self, number: int, leased: bool) -> dict[str, Any]:
        until = (now() + timedelta(seconds=self.lease)).isoformat() if leased else None
        given = {
            "worker": f"w-{number}",
            "endpoint": "http://127.0.0.1:9",
            "credential": f"credential-{number}",
        }
        return {
            "state": "active",
            "reason": "",
            "fence": 100 + number,
            "protected": True,
            "lease_until": until,
            **given,
        }

    async def _get_claim(self, request: web.Request) -> web.Response:
        claim = self.claims.get(request.match_info["id"])
        if claim is None:
            return problem(404, "not-found", "no such claim")
        wait = seconds(request.query.get("wait", "0s"))
        done = ("ended",) if request.query.get("until") == "ended" else ("active", "ended")
        with suppress(TimeoutError):
            async with asyncio.timeout(wait), self._changed:
                await self._changed.wait_for(lambda: claim["state"] in done)
        return web.json_response(claim)

    async def _act(self, request: web.Request) -> web.Response:
        body, verb = await request.json(), request.match_info["verb"]
        claim = self.claims[request.match_info["id"]]
        if claim["state"] == "ended" or body.get("fence") not in (None, claim.get("fence")):
            return problem(409, "stale", f"claim {claim['id']} has ended")
        async with self._changed:
            if verb == "renew":
                claim["lease_until"] = (now() + timedelta(seconds=self.lease)).isoformat()
            else:
                outcome = {"release": "released", "cancel": "cancelled"}[verb]
                claim.update(state="ended", outcome=outcome, reason=body.get("reason", ""))
            self._changed.notify_all()
        return web.json_response(claim)

    async def _output(self, request: web.Request) -> web.StreamResponse:
        name, at = request.match_info["id"], int(request.query["offset"])
        if name not in self.claims:
            return problem(404, "not-found", "no such claim")
        lines = self.speaks_lines and LINES in request.headers.get("Accept", "")
        response = web.StreamResponse(headers=self.output_headers(name, at))
        response.content_type = LINES if lines else "application/octet-stream"
        response.enable_chunked_encoding()
        await response.prepare(request)
        while True:
            ended = request.query["follow"] == "false" or self.claims[name]["state"] == "ended"
            if piece := self.outputs[name][at : self.keeps]:
                await response.write(self.as_lines(name, at, piece) if lines else piece)
                at += len(piece)
            if ended:
                break
            async with self._changed:
                await self._changed.wait_for(
                    lambda at=at: self.outputs[name][at : self.keeps] or self.claims[name]["state"] == "ended"
                )
        await response.write_eof()
        return response

    def as_lines(self, name: str, at: int, data: bytes) -> bytes:
        """Returns lines of the wire format. In `data`, stderr is in angle brackets, and a run of `~` stands for missing bytes."""
        shown = b""
        while data:
            piece, missing = re.match(rb"~+|<[^>]*>|[^<~]+", data)[0], data.startswith(b"~")
            stream = "stderr" if piece.startswith(b"<") else "stdout"
            body = {"missing": len(piece)} if missing else {"stream": stream, "data": base64.b64encode(piece).decode()}
            shown += json.dumps({"offset": at, **body}).encode() + b"\n"
            at, data = at + len(piece), data[len(piece) :]
        return shown

    def output_headers(self, name: str, at: int) -> dict[str, str]:
        wrote, missing = len(self.outputs[name]), self.outputs[name].count(b"~") if self.speaks_lines else 0
        truncated = "true" if wrote > self.keeps or missing else "false"
        size = str(min(wrote, self.keeps) - missing)
        headers = {"Holdfast-Offset": str(at), "Holdfast-Size": size, "Holdfast-Truncated": truncated}
        return {**headers, **({"Holdfast-Missing": str(missing)} if self.speaks_lines else {})}

    async def _events(self, request: web.Request) -> web.StreamResponse:
        after = int(request.headers.get("Last-Event-ID") or request.query.get("after") or 0)
        if request.headers.get("Accept") != "text/event-stream":
            found = [each for each in self.events if each["id"] > after]
            limit = int(request.query.get("limit", 100))
            newest = request.query.get("newest") == "true"
            shown = found[-limit:] if newest else found[:limit]
            return web.json_response({"items": shown, "next": str(shown[-1]["id"] if shown else after)})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            for event in [each for each in self.events if each["id"] > after]:
                after = event["id"]
                await response.write(f"id: {after}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode())
            async with self._changed:
                await self._changed.wait_for(lambda after=after: any(each["id"] > after for each in self.events))
