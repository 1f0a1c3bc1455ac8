"""The worker protocol: register, poll, progress, acknowledge, result (docs/worker-protocol.md)."""

import asyncio
import hmac

import msgspec
from starlette.responses import Response

from ..crash_points import crash_point
from ..model.duration import seconds
from ..model.effect import Done
from ..model.pool import Pool
from ..ports.cluster import AgentIdentity
from ..ports.logs import LOG_LIMIT
from ..ports.store import AgentReport, Directive
from ..recovery.compare import may_be_forgotten
from .agent_shapes import (
    POLL_SECONDS,
    Accepted,
    Acknowledge,
    AssignmentView,
    DirectiveView,
    Failure,
    Fenced,
    LogReport,
    Poll,
    Refusal,
    Register,
    Registered,
    ResultReport,
)
from .auth import AGENT_TOKEN_SECONDS, CHALLENGE
from .context import Context
from .problems import Problem, unavailable
from .routes import AGENT, BOOTSTRAP, Call, Route, answer, empty

# Seconds after which a poll reads the store even without a signal, because signals can be lost. It must be well below
# DELIVER_STALL, after which `deadlines` gives the claim to another worker.
LOOK_AGAIN = 3.0
OUTPUT_LIMIT = 64 * 1024 * 1024
REASON_LIMIT = 500
LOG_BODY = 6 * LOG_LIMIT + 1024  # bytes; JSON may write one character as six bytes
LAST_LINES = 5  # of a hook's output that a reason contains


class UnknownWorker(Problem):
    def __init__(self) -> None:
        super().__init__(409, "unknown-worker", "there is no such worker here; a free agent may try again, a busy one goes on")


class StaleClaim(Problem):
    def __init__(self) -> None:
        super().__init__(409, "stale", "this claim is no longer this worker's")


def one_line(reason: str) -> str:
    """Returns an agent's reason as one line. A long reason is cut, not refused, because an agent repeats a refused result
    until it is accepted."""
    return "".join(c if c.isprintable() else " " for c in reason[:REASON_LIMIT])


async def register(context: Context, call: Call) -> Response:
    body: Register = call.body
    if (call.agent.worker, call.agent.uid) != (body.worker, body.uid):
        raise Problem(401, "unauthenticated", "the token is forged, expired or another pod's", headers=CHALLENGE)
    known = await context.store.workers.identity(body.worker)
    # A token that the cluster verified may outlive its pod by seconds, so the UID must also match our row.
    if known is not None and known[0] not in (None, body.uid):
        raise UnknownWorker
    if (
        known is not None
        and known[0] is None
        and not isinstance(await context.store.workers.spawned(body.worker, body.uid), Done)
    ):
        raise UnknownWorker
    pool = known[1] if known is not None else await _forgotten(context, body.worker)
    if pool is None:
        raise UnknownWorker
    spec = pool.spec
    return answer(
        Registered(
            token=context.auth.sign_agent(AgentIdentity(body.worker, body.uid)),
            expires_in=AGENT_TOKEN_SECONDS,
            install=context.install,
            poll_seconds=POLL_SECONDS,
            mode=spec.mode,
            worker=spec.worker,
            grace=seconds(spec.drain.grace),
            output_limit=OUTPUT_LIMIT,
        )
    )


async def _forgotten(context: Context, worker: str) -> Pool | None:
    """Returns the pool of a pod whose row was in commits that the database lost. Its agent may register; otherwise the server
    could not learn whether the pod is free, and would neither adopt nor end it."""
    pod, state = await context.cluster.read(worker), await context.store.recovery.state()
    if pod is None or not may_be_forgotten(pod, state) or await context.store.workers.get(worker) is not None:
        return None
    pools = await context.store.pools.all()
    return next((p for p in pools if p.id == pod.pool_id), None) or next((p for p in pools if p.name == pod.pool), None)


async def poll(context: Context, call: Call) -> Response:
    """Answers when the agent should change what it does, or when the poll's time is over."""
    report, proven = _report(call), _proven(context, call.body)
    context.replica.heartbeats.add(report if proven else msgspec.structs.replace(report, claim=None, fence=None, tenant=None))
    mine = context.polls[report.worker] = object()  # an agent has one poll at a time, so an older poll is answered
    loop = asyncio.get_running_loop()
    end = loop.time() + call.body.wait
    fresh = True
    try:
        with context.signals.workers.watch(report.worker) as waiter:
            while True:
                waiter.clear()
                _require_compared(context)
                directive = await context.store.workers.report(report, fresh=fresh)
                fresh = False
                if directive.do == "outdated":
                    # The agent sent this before the database lost commits, so it proves nothing. The agent reports again at once.
                    return answer(DirectiveView(do="nothing", incarnation=directive.incarnation))
                if directive.do == "unknown":
                    raise UnknownWorker
                if directive.do == "ahead" and not proven:
                    raise StaleClaim
                if directive.do == "ahead":
                    assert report.fence is not None
                    await context.store.recovery.begin_by_fence(directive.reason, report.fence)
                elif directive.do != "nothing":
                    return await _direct(context, call.agent, directive)
                if directive.freed is not None:
                    context.claim_path.worker_freed(directive.freed)
                left = end - loop.time()
                gone = context.polls.get(report.worker) is not mine or await call.request.is_disconnected()
                if left <= 0 or gone or context.signals.stopping.is_set():
                    return answer(DirectiveView(do="nothing"))
                await waiter.wait(min(left, LOOK_AGAIN))
    finally:
        if context.polls.get(report.worker) is mine:
            del context.polls[report.worker]


def _require_compared(context: Context) -> None:
    """Sends the agent to another replica while this one has not compared its marks. It gives out and ends nothing then, so its
    agents would get no claim, and would not learn that their claims have ended."""
    if not context.store.recovery.compared:
        raise unavailable("this replica has not compared the database with what other replicas have seen")


def _report(call: Call) -> AgentReport:
    body: Poll = call.body
    return AgentReport(
        worker=call.agent.worker,
        uid=call.agent.uid,
        doing=body.doing,
        claim=body.claim,
        fence=body.fence,
        tenant=body.tenant,
        served_fence=body.served_fence,
        endpoint=body.endpoint,
        incarnation=body.incarnation,
    )


def _proven(context: Context, body: Poll) -> bool:
    """Returns whether the report carries the credential of the claim that it names. Without it the claim is ignored: reported
    claims are adopted after lost commits, and a forged fence would put the whole fleet into recovery."""
    if body.claim is None or body.fence is None:
        return body.claim is None and body.fence is None
    return hmac.compare_digest((body.credential or "").encode(), context.auth.credential(body.claim, body.fence).encode())


async def _direct(context: Context, agent: AgentIdentity, directive: Directive) -> Response:
    if directive.do != "hold":
        assert directive.do in ("end", "exit")
        if directive.park:
            crash_point("park.stored")
        return answer(DirectiveView(do=directive.do, fence=directive.fence, reason=directive.reason, park=directive.park))
    assignment = await context.store.claims.deliver(agent.worker, agent.uid)
    crash_point("handover.delivered")
    if assignment is None:
        return answer(DirectiveView(do="nothing"))
    view = AssignmentView(
        claim=assignment.claim,
        fence=assignment.fence,
        tenant=assignment.tenant,
        command=assignment.request.get("command") or [],
        payload=assignment.request.get("payload"),
        env=assignment.request.get("env") or {},
        secrets=assignment.secrets,
        credential=context.auth.credential(assignment.claim, assignment.fence),
        protected=assignment.protected,
        max_seconds=assignment.max_seconds,
        stdin=bool(assignment.request.get("stdin")),
    )
    return answer(DirectiveView(do="hold", assignment=view))


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


async def stale_or_unavailable(context: Context) -> Problem:
    """Returns StaleClaim, or 503 while claims are being recovered after lost commits, because the claim may still be found.
    A result that is refused just before the loss is detected is not lost: the agent has stored it, and the end of its pod is
    recorded with that result."""
    if (await context.store.recovery.state()).uncertain:
        return unavailable("the database lost commits, and claims are being found again")
    return StaleClaim()


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
    """Stores a worker's last output. Characters that a terminal would obey are replaced, because operators print the log."""
    text = "".join(c if c.isprintable() or c in "\n\t" else " " for c in call.body.text)
    if not await context.store.logs.keep(call.agent.worker, call.agent.uid, text):
        raise UnknownWorker
    return empty()


async def _held(context: Context, call: Call) -> str:
    worker = await context.store.workers.get(call.agent.worker)
    if worker is None or worker.claim is None or worker.fence != call.body.fence:
        raise StaleClaim
    return worker.claim


ROUTES = [
    Route("POST", "/v1/worker/register", "Register an agent when it starts", register, roles=BOOTSTRAP, body=Register,
         answers={200: Registered}, errors=(409,)),
    Route("POST", "/v1/worker/poll", "Report what the agent does, and wait for what it should do", poll, roles=AGENT, body=Poll,
         answers={200: DirectiveView}, errors=(409,)),
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
