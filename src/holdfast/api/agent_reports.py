"""The worker protocol: what an agent reports about its claim and its worker (docs/worker-protocol.md)."""

from starlette.responses import Response

from ..crash_points import crash_point
from ..model.shown import shown, shown_lines
from ..ports.logs import LOG_LIMIT
from .agent_problems import StaleClaim, UnknownWorker, stale_or_unavailable
from .agent_shapes import Accepted, Acknowledge, Failure, Fenced, LogReport, Refusal, ResultReport
from .context import Context
from .routes import AGENT, Call, Route, answer, empty

REASON_LIMIT = 500
LOG_BODY = 6 * LOG_LIMIT + 1024  # bytes; JSON may write one character as six bytes
LAST_LINES = 5  # of a hook's output that a reason contains


def one_line(reason: str) -> str:
    """Returns an agent's reason as one line. A long reason is cut, not refused, because an agent repeats a refused result
    until it is accepted."""
    return shown(reason[:REASON_LIMIT])[:REASON_LIMIT]


async def progress(context: Context, call: Call) -> Response:
    if not await context.store.claims.progress(call.agent.worker, call.body.fence):
        raise await stale_or_unavailable(context)
    return empty()


async def acknowledge(context: Context, call: Call) -> Response:
    body: Acknowledge = call.body
    claim = await context.claim_path.acknowledge(call.agent.worker, body.fence, body.endpoint, body.incarnation)
    if claim is None:
        raise await stale_or_unavailable(context)
    return answer(Accepted(claim.id))


async def refuse(context: Context, call: Call) -> Response:
    claim = await _held(context, call)
    await context.claim_path.activation_failed(claim, call.body.fence, _cause(call.body))
    context.signals.workers.changed(call.agent.worker)
    return empty()


def _cause(report: Refusal | Failure) -> str:
    """Returns why a worker failed, in one line: the agent's reason, and the last lines that its process wrote."""
    lines = [line.strip() for line in report.output.splitlines() if line.strip()]
    output = " / ".join(one_line(line) for line in lines[-LAST_LINES:])
    return f"{one_line(report.reason)}: {output}"[:REASON_LIMIT] if output else one_line(report.reason)


async def result(context: Context, call: Call) -> Response:
    body: ResultReport = call.body
    worker = await context.store.workers.get(call.agent.worker)
    if worker is None:
        problem = await stale_or_unavailable(context)
        raise UnknownWorker if isinstance(problem, StaleClaim) else problem
    claim = worker.claim
    if claim is None or worker.fence != body.fence:
        return await _result_again(context, call, body)
    outcome = "completed" if body.exit_code == 0 else "failed"
    reason = one_line(body.reason) or f"its command exited with {body.exit_code}"
    ended = await context.store.claims.end(
        claim,
        outcome=outcome,
        how="result",
        reason=reason,
        states=("active",),
        fence=body.fence,
        exit_code=body.exit_code,
    )
    context.claim_path.ended(ended, "result")
    crash_point("result.stored")
    if ended.claim is None:
        return await _result_again(context, call, body)
    return answer(Accepted(claim))


async def _result_again(context: Context, call: Call, body: ResultReport) -> Response:
    """Accepts a result again if it already ended the claim, because the first answer may have been lost. Any other result is
    stale."""
    claim = await context.store.claims.ended_by(call.agent.worker, body.fence)
    if claim is None:
        raise await stale_or_unavailable(context)
    return answer(Accepted(claim))


async def failed(context: Context, call: Call) -> Response:
    """Retires a worker that its agent gave up, because its boot or reset failed or its claim is no longer its own."""
    worker = await context.store.workers.get(call.agent.worker)
    if worker is None:
        raise UnknownWorker
    await context.store.workers.condemn(worker.id, None, f"its agent gave up: {one_line(call.body.reason)}", counted=False)
    if worker.state == "spawning":
        await context.store.pools.trouble(worker.pool_id, _cause(call.body), 2.0)
    context.signals.workers.changed(worker.id)
    return empty()


async def keep_log(context: Context, call: Call) -> Response:
    """Stores a worker's last output. Characters that a terminal would obey are escaped, because operators print the log."""
    text = shown_lines(call.body.text)
    if not await context.store.logs.keep(call.agent.worker, call.agent.uid, text):
        raise UnknownWorker
    return empty()


async def _held(context: Context, call: Call) -> str:
    worker = await context.store.workers.get(call.agent.worker)
    if worker is None or worker.claim is None or worker.fence != call.body.fence:
        raise StaleClaim
    return worker.claim


ROUTES = [
    Route("POST", "/v1/worker/progress", "Report that activation is still running", progress, roles=AGENT, body=Fenced,
         answers={204: None}, errors=(409,)),
    Route("POST", "/v1/worker/ack", "Acknowledge the claim after activation", acknowledge, roles=AGENT, body=Acknowledge,
         answers={200: Accepted}, errors=(409,)),
    Route("POST", "/v1/worker/refuse", "Report that activation failed", refuse, roles=AGENT, body=Refusal, answers={204: None}, errors=(409,)),
    Route("POST", "/v1/worker/result", "Report a job's result", result, roles=AGENT, body=ResultReport, answers={200: Accepted}, errors=(409,)),
    Route("POST", "/v1/worker/log", "Store the last output of the worker", keep_log, roles=AGENT, body=LogReport, body_limit=LOG_BODY,
         answers={204: None}, errors=(409,)),
    Route("POST", "/v1/worker/failed", "Report that the agent gives up its worker", failed, roles=AGENT, body=Failure, answers={204: None}, errors=(409,)),
]  # fmt: skip
