"""The bodies and queries of requests about claims, and how a claim is shown to callers."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from ..model.claim import Claim, Outcome
from ..model.duration import Duration
from ..model.label import Labels
from ..model.pool import Arg, Name
from ..model.tenant import TenantName
from .context import Context
from .routes import ONE_LINE, PRINTED, Line

ENV_MUST = "be a variable's name such as PATH: letters, digits and '_', not first a digit, at most 128 characters"
EnvName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$(?!\n)", extra={"must": ENV_MUST})]


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pool: Name
    tenant: TenantName | None = None
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=PRINTED, extra=ONE_LINE)] | None = None
    command: Annotated[list[Arg], msgspec.Meta(max_length=256)] = []
    payload: Any = None
    env: dict[EnvName, Arg] = {}
    secrets: dict[EnvName, Arg] = {}
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    wait: Duration = "10s"
    deadline: Duration = "1h"
    lease: Duration | None = None
    max_duration: Duration | None = None
    park_ttl: Duration | None = msgspec.field(default=None, name="parkTTL")
    retry: Literal["lost"] | None = None
    # Last and unset by default, so that the hash of a request without labels is the one that earlier releases stored with its key.
    labels: Labels | msgspec.UnsetType = msgspec.UNSET
    # Not in the hash of a key's request unless it is set, so that requests of the release before stay the same requests.
    stdin: bool | msgspec.UnsetType = msgspec.UNSET


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds spent waiting for the last worker, being handed over to it, and held. A retry starts them again."""

    wait: float | None = None
    hand_over: float | None = None
    hold: float | None = None


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: Literal["waiting", "assigned", "active", "ended"]
    reason: str
    pool: str
    tenant: str
    priority: int
    attempts: int
    created_at: datetime
    timings: Timings
    requested_priority: int | None = None
    priority_reason: str | None = None
    key: str | None = None
    worker: str | None = None
    endpoint: str | None = None
    credential: str | None = None
    fence: int | None = None
    protected: bool | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    assigned_at: datetime | None = None
    active_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    lease_until: datetime | None = None
    max_until: datetime | None = None
    labels: dict[str, str] = {}


class ClaimList(msgspec.Struct, frozen=True):
    items: list[ClaimView]
    next: str | None


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pool: str | None = None
    tenant: str | None = None
    state: Literal["waiting", "assigned", "active", "ended"] | None = None
    outcome: Outcome | None = None
    key: str | None = None
    worker: str | None = None
    since: str | None = None
    label: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class GetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wait: Duration = "0s"
    until: Literal["active", "ended"] = "active"


class Renew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fence: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fence: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] | None = None
    force: bool = False
    reason: Line = ""


class Cancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Line = ""


def when(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def view(context: Context, claim: Claim, *, listed: bool = False) -> ClaimView:
    """Returns the claim as its holder sees it. A list (`listed`) leaves out the credentials, because lists are printed, logged and
    sent to dashboards; a holder that needs the credential reads its claim."""
    active = claim.state == "active"
    was_active = claim.active_at is not None  # P1, P3: the worker is not shown to the holder before the claim is active
    usable = claim.fence if active and claim.endpoint is not None else None
    return ClaimView(
        id=claim.id,
        state=claim.state,
        reason=claim.reason,
        pool=claim.pool,
        tenant=claim.tenant,
        priority=claim.priority,
        requested_priority=claim.requested_priority,
        priority_reason=claim.priority_reason,
        attempts=claim.attempts,
        key=claim.key,
        worker=claim.worker if was_active else None,
        endpoint=claim.endpoint if active else None,
        credential=context.auth.credential(claim.id, usable) if usable is not None and not listed else None,
        fence=claim.fence if was_active else None,
        protected=claim.protected if was_active else None,
        outcome=claim.outcome,
        exit_code=claim.exit_code,
        created_at=datetime.fromtimestamp(claim.created_at, UTC),
        assigned_at=when(claim.assigned_at),
        active_at=when(claim.active_at),
        ended_at=when(claim.ended_at),
        deadline_at=when(claim.deadline_at) if claim.state == "waiting" else None,
        lease_until=when(claim.lease_until) if active else None,
        max_until=when(claim.max_until) if active else None,
        timings=Timings(
            wait=None if claim.waited is None else round(claim.waited, 6),
            hand_over=_between(claim.assigned_at, claim.active_at),
            hold=_between(claim.active_at, claim.ended_at),
        ),
        labels=claim.labels,
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start), 6)
