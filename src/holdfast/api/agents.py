"""The worker protocol: an agent registers, and polls for what it should do (docs/worker-protocol.md)."""

import asyncio
import hmac

import msgspec
from starlette.responses import Response

from ..model.duration import seconds
from ..model.effect import Done
from ..model.pool import Pool
from ..ports.cluster import AgentIdentity
from ..ports.store import AgentReport
from ..recovery.compare import may_be_forgotten
from .agent_problems import StaleClaim, UnknownWorker
from .agent_shapes import (
    POLL_SECONDS,
    DirectiveView,
    Poll,
    Register,
    Registered,
)
from .assignments import direct
from .auth import AGENT_TOKEN_SECONDS, CHALLENGE
from .context import Context
from .problems import Problem, unavailable
from .routes import AGENT, BOOTSTRAP, Call, Route, answer

# Seconds after which a poll reads the store even without a signal, because signals can be lost. It must be well below
# DELIVER_STALL, after which `deadlines` gives the claim to another worker.
LOOK_AGAIN = 3.0
OUTPUT_LIMIT = 64 * 1024 * 1024
NOT_PROVEN = "the claim is not this worker's"


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
                    if not proven:  # the reason may contain what another tenant wrote about its claim
                        directive = msgspec.structs.replace(directive, reason=NOT_PROVEN)
                    return await direct(context, call.agent, directive)
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


ROUTES = [
    Route("POST", "/v1/worker/register", "Register an agent when it starts", register, roles=BOOTSTRAP, body=Register,
         answers={200: Registered}, errors=(409,)),
    Route("POST", "/v1/worker/poll", "Report what the agent does, and wait for what it should do", poll, roles=AGENT, body=Poll,
         answers={200: DirectiveView}, errors=(409,)),
]  # fmt: skip
