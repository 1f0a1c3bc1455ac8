"""Requests that the API must refuse, with the status, the field and the reason of each answer."""

import json
from dataclasses import dataclass
from typing import Any

BIG = 64 * 1024
LONG = "x" * 600


@dataclass(frozen=True)
class Bad:
    """One request and the answer that it must get. `field` is None if the problem is not about a field."""

    method: str
    path: str
    body: Any = None
    status: int = 422
    field: str | None = None
    detail: str = ""
    token: str | None = "admin"
    raw: bytes | None = None

    def __str__(self) -> str:
        body = self.raw if self.raw is not None else json.dumps(self.body)
        return f"{self.method} {self.path[:80]} {body[:80]!r} as {self.token}"


def bad_claim(field: str, detail: str = "", status: int = 422, **more: Any) -> Bad:
    return Bad("POST", "/v1/claims", {"pool": "direct", **more}, status, field, detail)


def raw_claim(raw: bytes, field: str = "body", status: int = 400, detail: str = "") -> Bad:
    return Bad("POST", "/v1/claims", None, status, field, detail, raw=raw)


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return b'{"pool":"direct","payload":' + opening * depth + b"1" + closing * depth + b"}"


CLAIMS = [
    bad_claim("colour", "not a field", colour="red"),
    bad_claim("Pool", "not a field", Pool="direct"),
    bad_claim("f`oo", "not a field", **{"f`oo": 1}),
    bad_claim("parkTtl", "not a field", parkTtl="1m"),
    Bad("POST", "/v1/claims", {}, field="pool", detail="is required"),
    Bad("POST", "/v1/claims", None, field="body", detail="is required"),
    Bad("POST", "/v1/claims", {"pool": 7}, field="pool", detail="this is a whole number"),
    Bad("POST", "/v1/claims", {"pool": "direct\n"}, field="pool"),
    Bad("POST", "/v1/claims", {"pool": ".."}, field="pool"),
    Bad("POST", "/v1/claims", {"pool": "Direct"}, field="pool"),
    Bad("POST", "/v1/claims", {"pool": "dirett"}, 404, detail="did you mean 'direct'?"),
    bad_claim("tenant", tenant="a b"),
    bad_claim("tenant", tenant="acme\n"),
    bad_claim("key", key=""),
    bad_claim("key", key="k" * 256),
    bad_claim("key", key="one\ntwo"),
    bad_claim("command", command="true"),
    bad_claim("command", command=["x"] * 257),
    bad_claim("command[0]", "must be text, not a whole number", command=[7]),
    bad_claim("command[0]", "NUL", command=["a\x00b"]),
    bad_claim("payload.a[1]", "NUL", payload={"a": [1, "\x00"]}),
    bad_claim("payload", "NUL", payload={"\x00": 1}),
    bad_claim("payload", "64 bits", payload=2**64),
    bad_claim("payload.n", "64 bits", payload={"n": -(2**63) - 1}),
    bad_claim("env", "name", env={"A B": "x"}),
    bad_claim("env", "name", env={"A\n": "x"}),
    bad_claim("env", "name", env={"": "x"}),
    bad_claim("env.A", "must be text", env={"A": 5}),
    bad_claim("env.A", "NUL", env={"A": "\x00"}),
    bad_claim("env", env=["A=B"]),
    bad_claim("priority", priority=10),
    bad_claim("priority", priority=-1),
    bad_claim("priority", priority=1.5),
    bad_claim("priority", priority=True),
    bad_claim("priority", priority="3"),
    bad_claim("priority", priority=10**30),
    bad_claim("wait", wait="-1s"),
    bad_claim("wait", wait="soon"),
    bad_claim("wait", wait=5),
    bad_claim("wait", wait="9s\n"),
    bad_claim("wait", "longer than a year", wait="99999999h"),
    bad_claim("deadline", "longer than 0s", deadline="0s"),
    bad_claim("deadline", "longer than a year", deadline="9000h"),
    bad_claim("lease", "at least 1s", lease="10ms"),
    bad_claim("maxDuration", "the pool's", maxDuration="100h"),
    bad_claim("maxDuration", maxDuration="0s"),
    bad_claim("parkTTL", "longer than a year", parkTTL="9999h"),
    bad_claim("retry", retry="always"),
    bad_claim("secrets", "retry", pool="agents", command=["true"], retry="lost", secrets={"A": "b"}),
    bad_claim("secrets", "has no agent", secrets={"A": "b"}),
    bad_claim("env.HOLDFAST_POD_UID", "reserved", env={"HOLDFAST_POD_UID": "another"}),
    bad_claim("secrets.HOLDFAST_X", "reserved", pool="agents", command=["true"], secrets={"HOLDFAST_X": "b"}),
    raw_claim(b"not json"),
    raw_claim(b"{"),
    raw_claim(b'{"pool":"direct"} {}'),
    raw_claim(b'{"pool":"direct","payload":NaN}'),
    raw_claim(b'{"pool":"direct","payload":"\xff"}'),
    raw_claim(b'{"pool":"direct","payload":"\xed\xa0\x80"}'),
    raw_claim(b'{"pool":"direct","payload":"\\ud800"}'),
    raw_claim(b'{"pool":"direct","payload":"\\udc00x"}'),
    raw_claim(b"\xef\xbb\xbf{}"),
    raw_claim(b'{"pool":"direct","payload":1e400}', "payload", 422, "out of range"),
    raw_claim(b'{"pool":"direct","payload":' + b"9" * 5000 + b"}", "payload", 422, "out of range"),
    raw_claim(b"[]", detail="object", status=422),
    raw_claim(b'"direct"', detail="object", status=422),
    raw_claim(b"null", detail="object", status=422),
    raw_claim(nested(101), f"payload{'[0]' * 100}", 422, "nested"),
    raw_claim(nested(150, b'{"a":', b"}"), f"payload{'.a' * 100}", 422, "nested"),
    raw_claim(nested(500), f"payload{'[0]' * 100}", 422, "nested"),
    raw_claim(nested(20_000), "body", 422, "nested"),
]

OTHERS = [
    # Claims by id
    Bad("GET", "/v1/claims/..", status=404),
    Bad("GET", "/v1/claims/%2e%2e%2fetc", status=404),
    Bad("GET", "/v1/claims/a%20b", status=404, detail="'a b'"),
    Bad("GET", "/v1/claims/%C3%BC", status=404, detail="'ü'"),
    Bad("GET", "/v1/claims/%00", status=404),
    Bad("GET", "/v1/claims/%ED%A0%80", status=404),
    Bad("GET", "/v1/claims/%ff", status=404),
    Bad("GET", f"/v1/claims/{LONG}", status=404),
    Bad("GET", "/v1/claims/c-none", status=404),
    Bad("GET", "/v1/claims/c-none/output", status=404),
    Bad("GET", "/v1/claims/", status=404),
    Bad("GET", "/v1/claims/{active}?wait=long", field="wait"),
    Bad("GET", "/v1/claims/{active}?until=never", field="until"),
    Bad("GET", "/v1/claims/{active}?wait=0s&wait=0s", field="wait", detail="twice"),
    Bad("GET", "/v1/claims/{active}?colour=red", field="colour", detail="not a field"),
    Bad("GET", "/v1/claims/{active}?wait=%00", field="wait", detail="NUL"),
    Bad("GET", "/v1/claims/{active}/output?offset=-1", field="offset"),
    Bad("GET", "/v1/claims/{active}/output?offset=99999999999999999999", field="offset"),
    Bad("GET", "/v1/claims/{active}/output?follow=maybe", field="follow"),
    Bad("GET", "/v1/claims/c-none/input", status=404),
    Bad("POST", "/v1/claims/c-none/input", {"offset": 0}, status=404),
    Bad("POST", "/v1/claims/{active}/input", {"offset": 0, "data": "aGkK"}, status=409, detail="takes no input"),
    Bad("POST", "/v1/claims/{active}/input", {"data": "aGkK"}, field="offset"),
    Bad("POST", "/v1/claims/{active}/input", {"offset": 0, "data": "not base64!"}, field="data"),
    Bad("GET", "/v1/claims?limit=0", field="limit"),
    Bad("GET", "/v1/claims?limit=1001", field="limit"),
    Bad("GET", "/v1/claims?limit=ten", field="limit"),
    Bad("GET", f"/v1/claims?limit={'9' * 900}", field="limit"),
    Bad("GET", "/v1/claims?state=gone", field="state"),
    Bad("GET", "/v1/claims?state=null", field="state"),
    Bad("GET", "/v1/claims?cursor=garbage", field="cursor"),
    Bad("GET", f"/v1/claims?cursor={LONG}{LONG}", field="cursor", detail="longer"),
    Bad("GET", f"/v1/claims?{LONG}{LONG}=1", field="query", detail="longer"),
    Bad("GET", "/v1/claims?cursor={active}", field="cursor", token="rival"),
    Bad("GET", "/v1/claims?tenant=acme", status=403, token="rival"),
    Bad("POST", "/v1/claims/{active}/renew", {}, field="fence", detail="is required"),
    Bad("POST", "/v1/claims/{active}/renew", {"fence": -1}, field="fence"),
    Bad("POST", "/v1/claims/{active}/renew", {"fence": 2**53}, field="fence"),
    Bad("POST", "/v1/claims/{active}/renew", {"fence": 10**40}, field="fence"),
    Bad("POST", "/v1/claims/{active}/renew", {"fence": "1"}, field="fence"),
    Bad("POST", "/v1/claims/{active}/renew", {"fence": 1}, 409, detail="fence"),
    Bad("POST", "/v1/claims/{active}/release", {"fence": 1}, 409, detail="fence"),
    Bad("POST", "/v1/claims/{active}/release", {"force": True}, field="reason", detail="required with force"),
    Bad("POST", "/v1/claims/{active}/release", {"force": True, "reason": "  "}, field="reason"),
    Bad("POST", "/v1/claims/{active}/release", {"force": "yes"}, field="force"),
    Bad("POST", "/v1/claims/{active}/release", {"reason": LONG}, field="reason"),
    Bad("POST", "/v1/claims/{active}/release", {"reason": "fine\n12:00 claim.ended"}, field="reason"),
    Bad("POST", "/v1/claims/{active}/release", {"reason": "\x1b[2J"}, field="reason"),
    Bad("POST", "/v1/claims/{active}/release", {"force": True, "reason": "mine"}, 403, token="acme"),
    Bad("POST", "/v1/claims/{active}/cancel", {"why": "x"}, field="why"),
    Bad("POST", "/v1/claims/{active}/cancel", {"reason": "\x00"}, field="reason"),
    # Pools
    Bad("GET", "/v1/pools/dirct", status=404, detail="did you mean 'direct'?"),
    Bad("GET", "/v1/pools?cursor=a&cursor=b", field="cursor", detail="twice"),
    Bad("PUT", "/v1/pools/direct", None, field="body", detail="is required"),
    Bad("PUT", "/v1/pools/Capital", {}, field="name"),
    Bad("PUT", "/v1/pools/a..b", {}, field="name"),
    Bad("PUT", "/v1/pools/..", {}, field="name"),
    Bad("PUT", "/v1/pools/new%0A", {}, field="name"),
    Bad("PUT", "/v1/pools/a%20b", {}, field="name"),
    Bad("PUT", "/v1/pools/%C3%BC", {}, field="name"),
    Bad("PUT", f"/v1/pools/{'a' * 54}", {}, field="name"),
    Bad("PUT", "/v1/pools/new", {"warm": -1}, field="warm"),
    Bad("PUT", "/v1/pools/new", {"warm": 5, "max": 2}, field="warm", detail="must not exceed"),
    Bad("PUT", "/v1/pools/new", {"max": 10**9}, field="max"),
    Bad("PUT", "/v1/pools/new", {"worker": {"run": "true"}}, field="worker.run"),
    Bad("PUT", "/v1/pools/new", {"worker": {"image": "x"}}, field="worker.image"),
    Bad("PUT", "/v1/pools/new", {"worker": {"port": 0}}, field="worker.port"),
    Bad("PUT", "/v1/pools/new", {"startTimeout": "0s"}, field="startTimeout"),
    Bad("PUT", "/v1/pools/new", {"rollout": {"maxUnavailable": "200%"}}, field="rollout.maxUnavailable"),
    Bad("PUT", "/v1/pools/new", {"rollout": {"maxUnavailable": "5%\n"}}, field="rollout.maxUnavailable"),
    Bad("PUT", "/v1/pools/new", {"labels": ["a\x00"]}, field="labels[0]", detail="NUL"),
    Bad("PUT", "/v1/pools/direct", {"mode": "session", "worker": {"serve": ["x"]}}, field="mode"),
    Bad("DELETE", "/v1/pools/nothing", status=404),
    Bad("POST", "/v1/pools/direct/freeze", {}, field="reason", detail="is required"),
    Bad("POST", "/v1/pools/direct/freeze", {"reason": ""}, field="reason"),
    Bad("POST", "/v1/pools/nothing/freeze", {"reason": "x"}, 404),
    Bad("POST", "/v1/pools/direct/thaw", {"reason": "x"}, field="reason"),
    # Workers and tenants
    Bad("GET", "/v1/workers?state=ended", field="state"),
    Bad("GET", "/v1/workers?cursor=garbage", field="cursor"),
    Bad("GET", "/v1/workers/w-none", status=404),
    Bad("POST", "/v1/workers/w-none/retire", {"reason": "x"}, 404),
    Bad("POST", "/v1/workers/{worker}/retire", {"reason": "x"}, 409, detail="end its claim first"),
    Bad("GET", "/v1/tenants/nobody", status=404),
    Bad("PUT", "/v1/tenants/a%20b", {}, field="name"),
    Bad("PUT", "/v1/tenants/acme%0A", {}, field="name"),
    Bad("PUT", "/v1/tenants/acme", {"weight": 0}, field="weight"),
    Bad("PUT", "/v1/tenants/acme", {"maxClaims": 10**7}, field="maxClaims"),
    Bad("PUT", "/v1/tenants/acme", {"parkTTL": "9999999h"}, field="parkTTL", detail="longer than a year"),
    # The system
    Bad("GET", "/v1/events?after=garbage", field="after"),
    Bad("GET", "/v1/events?after=%FF", field="after"),
    Bad("GET", "/v1/events?limit=5000", field="limit"),
    Bad("GET", "/v1/explain/house/x", status=404, detail="pool, worker or claim"),
    Bad("GET", "/v1/explain/claim/c-none", status=404),
    Bad("GET", "/v1/explain/worker/..", status=404),
    Bad("GET", "/v1/explain/pool/%F0%9F%90%8C", status=404),
    Bad("POST", "/v1/brake/release", {"reason": "x"}, 409),
    Bad("POST", "/v1/tokens", {"name": "x", "role": "king"}, field="role"),
    Bad("POST", "/v1/tokens", {"name": "x", "role": "tenant"}, field="tenant"),
    Bad("POST", "/v1/tokens", {"name": "x", "role": "admin", "tenant": "acme"}, field="tenant"),
    Bad("POST", "/v1/tokens", {"name": "a\nb", "role": "admin"}, field="name"),
    Bad("POST", "/v1/tokens", {"name": "x", "role": "admin", "expiresIn": "0s"}, field="expiresIn"),
    Bad("POST", "/v1/tokens", {"name": "x", "role": "admin", "expiresIn": "9999999h"}, field="expiresIn"),
    Bad("DELETE", "/v1/tokens/t-none", status=404),
    Bad("DELETE", "/v1/tokens/t-admin", status=409),
    Bad("GET", "/healthz?x=1", field="x"),
    Bad("GET", "/healthz", status=401, token=None),
    Bad("GET", "/v1/nowhere", status=401, token=None),
    Bad("GET", "/v1/nowhere", status=404, detail="/openapi.json"),
    Bad("PATCH", "/v1/pools/direct", {}, 405),
]

AGENTS = [
    Bad("POST", "/v1/worker/poll", {}, field="doing", detail="is required"),
    Bad("POST", "/v1/worker/poll", {"doing": "sleeping"}, field="doing"),
    Bad("POST", "/v1/worker/poll", {"doing": "idle", "wait": 61}, field="wait"),
    Bad("POST", "/v1/worker/poll", {"doing": "idle", "fence": 2**53}, field="fence"),
    Bad("POST", "/v1/worker/ack", {"fence": 1}, 409),
    Bad("POST", "/v1/worker/ack", {"fence": 1, "endpoint": "\x00"}, field="endpoint", detail="NUL"),
    Bad("POST", "/v1/worker/progress", {"fence": 1}, 409),
    Bad("POST", "/v1/worker/refuse", {"fence": 1}, 409),
    Bad("POST", "/v1/worker/result", {"fence": 1, "exit_code": 0}, 409),
    Bad("POST", "/v1/worker/result", {"fence": 1, "exit_code": 99999}, field="exit_code"),
    Bad("POST", "/v1/worker/failed", {"reason": 5}, field="reason"),
]

ROLES = [
    *(Bad(method, path, body, 403, token="acme", detail="this needs the role")
      for method, path, body in [
          ("PUT", "/v1/pools/new", {}), ("DELETE", "/v1/pools/direct", None),
          ("POST", "/v1/pools/direct/freeze", {"reason": "x"}), ("POST", "/v1/pools/direct/thaw", {}),
          ("GET", "/v1/workers", None), ("GET", "/v1/workers/w-1", None),
          ("POST", "/v1/workers/w-1/retire", {"reason": "x"}), ("GET", "/v1/tenants", None), ("GET", "/v1/tenants/acme", None),
          ("PUT", "/v1/tenants/acme", {"weight": 1000}), ("GET", "/v1/duties", None), ("GET", "/v1/replicas", None),
          ("GET", "/v1/brake", None), ("POST", "/v1/brake/release", {"reason": "x"}), ("GET", "/v1/doctor", None),
          ("GET", "/v1/recovery", None), ("POST", "/v1/recovery/w-1", {"decision": "confirm", "reason": "x"}),
          ("GET", "/v1/tokens", None), ("POST", "/v1/tokens", {"name": "x", "role": "admin"}),
          ("DELETE", "/v1/tokens/t-rival", None), ("GET", "/metrics", None),
      ]),
    Bad("GET", "/v1/explain/pool/direct", status=403, token="acme"),
    Bad("GET", "/v1/explain/worker/w-1", status=403, token="acme"),
    Bad("PUT", "/v1/tenants/acme", {}, 403, token="operator"),
    Bad("GET", "/v1/tokens", status=403, token="operator"),
    Bad("POST", "/v1/tokens", {"name": "x", "role": "admin"}, 403, token="operator"),
    Bad("POST", "/v1/claims", {"pool": "direct", "tenant": "rival"}, 403, token="acme"),
    Bad("GET", "/v1/claims/{active}", status=404, token="rival"),
    Bad("GET", "/v1/claims/{active}/output", status=404, token="rival"),
    Bad("GET", "/v1/explain/claim/{active}", status=404, token="rival"),
    Bad("POST", "/v1/claims/{active}/renew", {"fence": 1}, 404, token="rival"),
    Bad("POST", "/v1/claims/{active}/release", {}, 404, token="rival"),
    Bad("POST", "/v1/claims/{active}/cancel", {}, 404, token="rival"),
    Bad("POST", "/v1/worker/poll", {"doing": "idle"}, 401, token="admin"),
    Bad("POST", "/v1/worker/poll", {"doing": "idle"}, 401, token="hfa_"),
    Bad("POST", "/v1/worker/poll", {"doing": "idle"}, 401, token="hfa_x.\xe9"),
    Bad("POST", "/v1/worker/register", {"worker": "w-agent", "uid": "u-w-agent"}, 401, token="w-agent.u-w-agent.\xe9"),
    Bad("POST", "/v1/worker/register", {"worker": "w-agent", "uid": "u-w-agent"}, 401, token="admin"),
    Bad("GET", "/v1/me", status=401, token=None),
    Bad("GET", "/v1/me", status=401, token="hf_unknown"),
    Bad("GET", "/v1/me", status=401, token="\xe9"),
]  # fmt: skip
