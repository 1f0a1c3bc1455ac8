"""The routes for recovery: the workers that lost commits left undecided, and an operator's decision about one of them."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from ..model.effect import Done, Skipped
from ..model.worker import Worker
from ..ports.recovery import Unconfirmed
from ..ports.store import EndedClaim
from .claim_shapes import when
from .context import Context
from .problems import Problem, not_now
from .routes import OPERATORS, Call, Line, PageQuery, Route, answer, page
from .workers import WorkerView, worker_view


class UnconfirmedView(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    pool: str
    state: Literal["spawning", "warm", "parked", "held", "retiring"]
    since: datetime
    claim: str | None
    claim_state: Literal["assigned", "active"] | None
    tenant: str | None
    doing: str | None  # what its agent has reported since the recovery began, and for which claim
    reported_claim: str | None
    confirm: str  # what each decision would do
    give_up: str


class RecoveryView(msgspec.Struct, frozen=True, kw_only=True):
    recovering: bool
    since: datetime | None
    reason: str | None
    items: list[UnconfirmedView]  # workers that have not been confirmed since commits were lost
    next: str | None


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's decision about an unconfirmed worker, and the reason."""

    decision: Literal["confirm", "give-up"]
    reason: Annotated[Line, msgspec.Meta(min_length=1)]


async def recovery(context: Context, call: Call) -> Response:
    state = await context.store.recovery.state()
    left, after = page(await context.store.recovery.unconfirmed(), call.query, lambda one: one.worker)
    reason = state.reason if state.recovering else None
    views = [unconfirmed_view(one) for one in left]
    return answer(RecoveryView(recovering=state.recovering, since=when(state.since), reason=reason, items=views, next=after))


def unconfirmed_view(one: Unconfirmed) -> UnconfirmedView:
    since = when(one.since)
    assert since is not None
    confirm, give_up = effects(one)
    return UnconfirmedView(
        worker=one.worker,
        pool=one.pool,
        state=one.state,
        since=since,
        claim=one.claim,
        claim_state=one.claim_state,
        tenant=one.tenant,
        doing=one.doing,
        reported_claim=one.reported_claim,
        confirm=confirm,
        give_up=give_up,
    )


def effects(one: Unconfirmed) -> tuple[str, str]:
    """Returns what `confirm` and `give-up` would do to this worker and its claim."""
    if one.reported_claim is not None and one.reported_claim != one.claim:
        return ("nothing: its agent reports another claim",) * 2
    if one.state == "retiring":
        return ("its pod is deleted",) * 2
    if one.state == "spawning":
        return "it may be given out once it is ready", "it retires"
    if one.claim is None:
        return "it may be given out again", "it retires"
    if one.claim_state == "active":
        return "its claim goes on", "its claim ends as lost, and it retires"
    confirm = "its claim counts as not begun; if the worker stays silent, another one serves it"
    if one.delivered:
        return confirm, "its claim may have run, so it ends as lost; the worker retires"
    return confirm, "its claim goes back to its place in the queue, and the worker retires"


async def decide(context: Context, call: Call) -> Response:
    body: Decision = call.body
    worker = await context.store.workers.get(call.path("worker"))
    if worker is None:
        raise await context.unknown_worker(call.path("worker"))
    decide_on = context.store.recovery.confirm if body.decision == "confirm" else context.store.recovery.give_up
    outcome = await decide_on(worker.id, body.reason, call.caller.actor)
    now = await context.store.workers.get(worker.id) or worker
    if isinstance(outcome, Skipped):
        raise Problem(409, outcome.by, not_now(outcome.by, worker.pool))
    if not isinstance(outcome, Done):
        raise _nothing_to_decide(now)
    if worker.claim is not None and now.claim is None:
        await _claim_left(context, worker.claim)
    if now.state in ("warm", "parked"):
        context.claim_path.worker_freed(now.pool_id)
    context.signals.workers.changed(now.id)
    return answer(worker_view(now))


async def _claim_left(context: Context, claim: str) -> None:
    """Wakes the requests that wait for a claim that lost its worker, and counts the claim if it ended."""
    found = await context.store.claims.get([claim])
    if found and found[0].state == "ended":
        context.claim_path.ended(EndedClaim(Done(), found[0]), "force")
    else:
        context.signals.claims.changed(claim)


def _nothing_to_decide(worker: Worker) -> Problem:
    if worker.state in ("retiring", "gone"):
        return Problem(409, worker.state, f"worker {worker.id} is {worker.state} already, so there is nothing to decide")
    detail = f"worker {worker.id} is confirmed, so there is nothing to decide; `holdfast recover` lists what is left"
    return Problem(409, "confirmed", detail)


ROUTES = [
    Route("GET", "/v1/recovery", "Whether a recovery is in progress, and which workers are unconfirmed", recovery, roles=OPERATORS,
         query=PageQuery, answers={200: RecoveryView}),
    Route("POST", "/v1/recovery/{worker}", "Decide about an unconfirmed worker", decide, roles=OPERATORS, body=Decision,
         answers={200: WorkerView}, errors=(404, 409)),
]  # fmt: skip
