"""The routes for workers: list and read them and their last output, and retire a free one."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from ..model.effect import Done, Skipped
from ..model.worker import Worker
from .claim_shapes import when
from .context import Context
from .filters import known_pool, moment
from .problems import Problem, not_now, refused
from .routes import OPERATORS, Because, Call, Route, answer


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    pool: str
    state: Literal["spawning", "warm", "held", "parked", "retiring", "gone"]
    revision: str
    created_at: datetime
    state_since: datetime
    claim: str | None
    tenant: str | None
    reason: str | None
    node: str | None
    uid: str | None
    ready: bool
    terminating: bool
    suspect: bool
    unconfirmed: bool
    parked_since: datetime | None


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's processes and its agent wrote last. `at` is when its agent sent it, or null if it sent nothing."""

    worker: str
    at: datetime | None
    text: str


class WorkerList(msgspec.Struct, frozen=True):
    items: list[WorkerView]
    next: str | None


class WorkerQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pool: str | None = None
    tenant: str | None = None
    state: Literal["spawning", "warm", "held", "parked", "retiring", "gone"] | None = None
    since: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


def worker_view(worker: Worker) -> WorkerView:
    created, since = when(worker.created_at), when(worker.state_since)
    assert created is not None
    assert since is not None
    return WorkerView(
        id=worker.id,
        pool=worker.pool,
        state=worker.state,
        revision=worker.revision,
        created_at=created,
        state_since=since,
        claim=worker.claim,
        tenant=worker.tenant,
        reason=worker.reason,
        node=worker.node,
        uid=worker.pod_uid,
        ready=worker.ready,
        terminating=worker.terminating,
        suspect=worker.suspect_since is not None,
        unconfirmed=not worker.confirmed,
        parked_since=when(worker.parked_since),
    )


async def workers(context: Context, call: Call) -> Response:
    query: WorkerQuery = call.query
    if query.cursor is not None and await context.store.workers.get(query.cursor) is None:
        raise refused("cursor", "is not a cursor of this list, or its worker was pruned; start again without a cursor")
    found, after = await context.store.workers.find(
        limit=query.limit,
        cursor=query.cursor,
        pool=await known_pool(context, query.pool),
        tenant=query.tenant,
        state=query.state,
        since=await moment(context, "since", query.since),
    )
    return answer(WorkerList([worker_view(worker) for worker in found], after))


async def worker(context: Context, call: Call) -> Response:
    found = await context.store.workers.get(call.path("id"))
    if found is None:
        raise await context.unknown_worker(call.path("id"))
    return answer(worker_view(found))


async def log(context: Context, call: Call) -> Response:
    id_ = call.path("id")
    kept = await context.store.logs.get(id_)
    if kept is None:
        if await context.store.workers.get(id_) is None:
            raise await context.unknown_worker(id_)
        return answer(LogView(worker=id_, at=None, text=""))
    return answer(LogView(worker=id_, at=when(kept.at), text=kept.text))


async def retire(context: Context, call: Call) -> Response:
    found = await context.store.workers.get(call.path("id"))
    if found is None:
        raise await context.unknown_worker(call.path("id"))
    reason = f"retired by an operator: {call.body.reason}"
    result = await context.store.workers.condemn(found.id, None, reason, counted=False, actor=call.caller.actor)
    if isinstance(result, Skipped):
        raise Problem(409, result.by, not_now(result.by, found.pool))
    if not isinstance(result, Done):
        raise _not_free(await context.store.workers.get(found.id) or found)
    context.signals.workers.changed(found.id)
    return answer(worker_view(await context.store.workers.get(found.id) or found))


def _not_free(worker: Worker) -> Problem:
    """Returns the problem that explains why a worker in this state cannot be retired."""
    if worker.state == "gone":
        return Problem(409, "gone", f"worker {worker.id} is gone already: nothing is left of it to retire")
    if worker.state == "retiring":
        why = f", because {worker.reason}" if worker.reason else ""
        return Problem(409, "retiring", f"worker {worker.id} is retiring already{why}")
    held = f"is held by claim {worker.claim}" if worker.claim else f"is {worker.state}"
    return Problem(409, "busy", f"worker {worker.id} {held}: only a free worker can be retired; end its claim first")


ROUTES = [
    Route("GET", "/v1/workers", "Workers, newest first", workers, roles=OPERATORS, query=WorkerQuery, answers={200: WorkerList}),
    Route("GET", "/v1/workers/{id}", "One worker", worker, roles=OPERATORS, answers={200: WorkerView}, errors=(404,)),
    Route("GET", "/v1/workers/{id}/log", "The last output of a worker, until a day after its end", log, roles=OPERATORS,
         answers={200: LogView}, errors=(404,)),
    Route("POST", "/v1/workers/{id}/retire", "End a free worker", retire, roles=OPERATORS, body=Because,
         answers={200: WorkerView}, errors=(404, 409)),
]  # fmt: skip
