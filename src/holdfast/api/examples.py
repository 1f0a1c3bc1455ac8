"""Examples of requests and answers, for the OpenAPI document. A test proves that each of them fits its type."""

from typing import Any

CLAIM_ID, WORKER_ID, TOKEN_ID = "c-3f1c0a5be2d94c17", "w-5e2f9a", "t-8c21d4"
EVENT_ID = "NzMxLjE4"
FENCE = 1_099_511_627_777
AT, LATER = "2026-01-31T12:00:00Z", "2026-01-31T12:01:00Z"

CLAIM = {
    "id": CLAIM_ID,
    "state": "active",
    "reason": "",
    "pool": "notebook",
    "tenant": "acme",
    "priority": 2,
    "requested_priority": 7,
    "priority_reason": "priority 7 was requested and 2 granted, because tenant 'acme' may use at most 2 (its maxPriority, which an"
    " admin can raise)",
    "attempts": 1,
    "created_at": AT,
    "timings": {"wait": 0.004, "hand_over": 0.021},
    "key": "build-7",
    "worker": WORKER_ID,
    "endpoint": "http://127.0.0.1:41234",
    "credential": "hfc_…",
    "fence": FENCE,
    "protected": True,
    "assigned_at": AT,
    "active_at": AT,
    "lease_until": LATER,
    "max_until": "2026-02-01T12:00:00Z",
    "labels": {"team": "web"},
}
LISTED_CLAIM = {name: value for name, value in CLAIM.items() if name != "credential"}
POOL_SPEC = {"mode": "job", "warm": 2, "max": 10, "claim": {"maxDuration": "1h"}}
POOL = {
    "name": "linux",
    "id": "p-71fd02",
    "revision": "a1b2c3d4e5",
    "generation": 1,
    "state": "live",
    "source": "api",
    "frozen": None,
    "created_at": AT,
    "spec": POOL_SPEC,
    "status": {"warm": 2, "held": 3, "free": 2},
}
TENANT_POOL = {
    "name": "linux",
    "state": "live",
    "frozen": False,
    "spec": {
        "mode": "job",
        "warm": 2,
        "max": 10,
        "claim": {"lease": "60s", "maxDuration": "1h"},
        "park": {"ttl": "1m", "maxTTL": "1h"},
        "labels": [],
    },
    "status": {"spawning": 0, "warm": 2, "free": 2, "waiting": 0, "oldest_wait": 0.0},
}
WORKER = {
    "id": WORKER_ID,
    "pool": "notebook",
    "state": "held",
    "revision": "a1b2c3d4e5",
    "created_at": AT,
    "state_since": AT,
    "claim": CLAIM_ID,
    "tenant": "acme",
    "reason": None,
    "node": "node-1",
    "uid": "0b6e1f1e-5d0c-4a39-9a55-1f2a7d6c9f10",
    "ready": True,
    "terminating": False,
    "suspect": False,
    "unconfirmed": False,
    "parked_since": None,
}
TENANT_SPEC = {"weight": 3, "maxClaims": 5, "maxPriority": 5, "parkTTL": "5m", "maxWaiting": 1000, "maxOutputBytes": 1073741824}
TENANT = {"name": "acme", "spec": TENANT_SPEC, "live": 2, "waiting": 0}
TOKEN = {"id": TOKEN_ID, "name": "ci", "role": "tenant", "tenant": "acme", "created_at": AT, "expires_at": None}
UNCONFIRMED = {
    "worker": WORKER_ID,
    "pool": "notebook",
    "state": "held",
    "since": AT,
    "claim": CLAIM_ID,
    "claim_state": "active",
    "tenant": "acme",
    "doing": None,
    "reported_claim": None,
    "confirm": "its claim goes on",
    "give_up": "its claim ends as lost, and the worker retires",
}


def _list(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next": None}


# By the name of the type.
EXAMPLES: dict[str, Any] = {
    "ClaimRequest": {"pool": "linux", "command": ["make", "test"], "env": {"CI": "1"}, "key": "build-7", "wait": "10s"},
    "ClaimView": CLAIM,
    "ClaimList": _list(LISTED_CLAIM),
    "Renew": {"fence": FENCE},
    "Release": {"fence": FENCE},
    "Cancel": {"reason": "no longer needed"},
    "PoolSpec": POOL_SPEC,
    "PoolView": POOL,
    "PoolList": _list(POOL),
    "TenantPoolView": TENANT_POOL,
    "TenantPoolList": _list(TENANT_POOL),
    "ApplyRequest": {
        "objects": [
            {"kind": "WorkerPool", "name": "linux", "spec": POOL_SPEC},
            {"kind": "Tenant", "name": "acme", "spec": TENANT_SPEC},
        ],
        "dryRun": True,
    },
    "ApplyAnswer": {
        "items": [{"kind": "Tenant", "name": "acme", "result": "created", "before": None, "after": TENANT_SPEC}],
        "dryRun": True,
    },
    "ScaleRequest": {"warm": 5},
    "Because": {"reason": "looking at a stuck job"},
    "Nothing": {},
    "WorkerView": WORKER,
    "WorkerList": _list(WORKER),
    "LogView": {"worker": WORKER["id"], "at": WORKER["created_at"], "text": "loading the model\n"},
    "TenantSpec": TENANT_SPEC,
    "TenantView": TENANT,
    "TenantList": _list(TENANT),
    "EventList": {
        "items": [
            {
                "id": EVENT_ID,
                "at": AT,
                "kind": "claim.created",
                "reason": "",
                "also": None,
                "pool": "notebook",
                "worker": WORKER_ID,
                "claim": CLAIM_ID,
                "tenant": "acme",
                "data": None,
                "actor": {"id": TOKEN_ID, "name": "ci", "role": "tenant"},
            }
        ],
        "next": EVENT_ID,
        "previous": None,
    },
    "Explanation": {
        "kind": "claim",
        "id": CLAIM_ID,
        "sentences": [
            f"Claim {CLAIM_ID} of tenant acme on pool notebook has been active for 12s, since 2026-01-31 12:00:00 UTC."
        ],
        "facts": {"state": "active", "outcome": None, "worker": WORKER_ID, "attempts": 1},
    },
    "DutyList": _list(
        {
            "duty": "match",
            "holder": "r-1f2e3d",
            "number": 4,
            "held": True,
            "success_at": AT,
            "age": 0.4,
            "progress_at": AT,
            "seconds": 0.002,
            "actions": 12,
            "skips": 0,
            "taken_over": 0,
            "failure": None,
        }
    ),
    "ReplicaList": _list(
        {
            "id": "r-1f2e3d",
            "pid": 4711,
            "host": "node-1",
            "url": "http://10.0.0.5:7070",
            "port": 7070,
            "version": "0.1.0",
            "state": "live",
            "duties": ["match", "scale"],
            "started_at": AT,
            "seen_at": LATER,
        }
    ),
    "BrakeView": {
        "tripped": False,
        "tripped_at": None,
        "reason": None,
        "workers": 50,
        "claims": 50,
        "share": 0.25,
        "tenant_share": 0.5,
        "workers_ended": 3,
        "claims_ended": 25,
        "tenants": [{"tenant": "acme", "tripped_at": AT, "reason": "25 claims of tenant acme were ended in ten minutes"}],
        "limit": 50,
    },
    "BrakeLimits": {"workers": 100, "claims": 50, "share": 0.25, "tenantShare": 0.5},
    "ReleaseBrake": {"reason": "its holders were restarted", "tenant": "acme"},
    "Doctor": {"checks": [{"name": "every pod has a row", "promise": "P5", "ok": True, "detail": "", "advice": ""}], "ok": True},
    "Me": {"role": "tenant", "tenant": "acme", "install": "i-0a1b2c", "version": "0.1.0"},
    "RecoveryView": {"recovering": False, "since": None, "reason": None, **_list(UNCONFIRMED)},
    "Decision": {"decision": "give-up", "reason": "its node is gone"},
    "NewToken": {"name": "ci", "role": "tenant", "tenant": "acme", "expiresIn": "720h"},
    "Revoked": {"id": TOKEN["id"], "cancelled": []},
    "TokenView": {**TOKEN, "token": "hf_…"},
    "TokenList": _list(TOKEN),
    "SentInput": {"offset": 0, "data": "aGkK", "end": True},
    "StoredInput": {"offset": 3, "taken": 3, "end": True, "closed": False},
    # The worker protocol
    "Register": {"worker": WORKER_ID, "uid": WORKER["uid"], "version": "0.1.0", "protocol": 1},
    "Registered": {
        "token": "hfa_…",
        "expires_in": 3600,
        "install": "i-0a1b2c",
        "poll_seconds": 20,
        "mode": "job",
        "worker": {"run": ["make", "test"]},
        "grace": 3600.0,
        "output_limit": 67_108_864,
    },
    "Poll": {"doing": "idle", "incarnation": 1, "wait": 20.0},
    "DirectiveView": {"do": "end", "fence": FENCE, "reason": "released by its holder", "park": True},
    "Fenced": {"fence": FENCE},
    "Acknowledge": {"fence": FENCE, "endpoint": "http://127.0.0.1:41234", "incarnation": 1},
    "ResultReport": {"fence": FENCE, "exit_code": 0, "reason": ""},
    "Refusal": {"fence": FENCE, "reason": "activate exited with 1", "output": "no such volume\n"},
    "Failure": {"reason": "serve did not listen", "output": ""},
    "LogReport": {"text": "loading the model\n"},
    "Accepted": {"claim": CLAIM_ID},
    "TakeInput": {"fence": FENCE, "taken": 3, "closed": False, "wait": 20.0},
    "GivenInput": {"data": "aGkK", "end": False},
}
OUTPUT = '{"offset": 0, "stream": "stdout", "data": "aGVsbG8K"}\n{"offset": 6, "missing": 5000}\n'
STREAM = f'id: {EVENT_ID}\nevent: claim.active\ndata: {{"id": "{EVENT_ID}", "kind": "claim.active"}}\n\n'
# Of problems: the code and the detail, by status.
PROBLEMS = {
    400: ("malformed", "the body is not JSON"),
    401: ("unauthenticated", "the token is not known here, or has expired"),
    403: ("forbidden", "this needs the role admin or operator; yours is tenant"),
    404: ("not-found", "there is no pool 'linx'; did you mean 'linux'?"),
    409: ("stale", f"claim {CLAIM_ID} is waiting and not active yet; wait for it, or cancel it"),
    413: ("too-large", "the body is larger than 65536 bytes"),
    422: ("invalid", "wait: must be a duration such as 500ms, 60s, 10m or 1h30m"),
    429: ("too-many", "this token has 32 streams open here; close one"),
    503: ("unavailable", "the store is not available; nothing was lost, try again"),
}
# Of answers that are not JSON objects, by path.
RAW = {
    "/v1/claims/{id}/output": "hello\n",
    "/metrics": "holdfast_workers 5\n",
    "/healthz": {"ok": True},
    "/readyz": {"ok": True},
    "/openapi.json": {"openapi": "3.1.0"},
    "/openapi-agents.json": {"openapi": "3.1.0"},
}
# Of parameters in paths and queries, by the path's beginning and by name.
PARAMETERS: dict[str, dict[str, Any]] = {
    "/v1/claims": {"id": CLAIM_ID, "cursor": CLAIM_ID, "state": "waiting", "until": "ended", "wait": "30s"},
    "/v1/pools": {"name": "linux", "cursor": "linux p-71fd02"},
    "/v1/workers": {"id": WORKER_ID, "cursor": WORKER_ID, "state": "warm"},
    "/v1/tenants": {"name": "acme", "cursor": "acme"},
    "/v1/tokens": {"id": TOKEN_ID, "cursor": TOKEN_ID, "cancel": True},
    "/v1/explain": {"kind": "claim", "id": CLAIM_ID},
    "": {
        "limit": 100,
        "pool": "linux",
        "tenant": "acme",
        "worker": WORKER_ID,
        "claim": CLAIM_ID,
        "after": EVENT_ID,
        "before": EVENT_ID,
        "since": "10m",
        "until": "2026-01-31T12:00:00Z",
        "kind": "claim.ended,brake",
        "label": "team=web,ci",
        "outcome": "completed",
        "key": "build-7",
        "newest": True,
        "offset": 0,
        "follow": False,
        "cursor": "match",
    },
}


def parameter(path: str, name: str) -> Any:
    """Returns an example of a parameter, or None if there is none."""
    return next((found[name] for start, found in PARAMETERS.items() if path.startswith(start) and name in found), None)
