"""Answer an agent's poll with what it should do, and with the claim that it should take."""

from starlette.responses import Response

from ..crash_points import crash_point
from ..ports.cluster import AgentIdentity
from ..ports.store import Assignment, Directive
from .agent_shapes import AssignmentView, DirectiveView
from .context import Context
from .encryption import CannotDecrypt
from .routes import answer


async def direct(context: Context, agent: AgentIdentity, directive: Directive) -> Response:
    if directive.do != "hold":
        assert directive.do in ("end", "exit")
        if directive.park:
            crash_point("park.stored")
        return answer(DirectiveView(do=directive.do, fence=directive.fence, reason=directive.reason, park=directive.park))
    assignment = await context.store.claims.deliver(agent.worker, agent.uid)
    crash_point("handover.delivered")
    if assignment is None:
        return answer(DirectiveView(do="nothing"))
    try:
        secrets = _secrets(context, assignment)
    except CannotDecrypt as error:
        # The claim is tried again, because another replica may have the right key. After a few tries it is refused with this reason.
        await context.claim_path.activation_failed(assignment.claim, assignment.fence, str(error))
        context.signals.workers.changed(agent.worker)
        return answer(DirectiveView(do="nothing"))
    view = AssignmentView(
        claim=assignment.claim,
        fence=assignment.fence,
        tenant=assignment.tenant,
        command=assignment.request.get("command") or [],
        payload=assignment.request.get("payload"),
        env=assignment.request.get("env") or {},
        secrets=secrets,
        credential=context.auth.credential(assignment.claim, assignment.fence),
        protected=assignment.protected,
        max_seconds=assignment.max_seconds,
        stdin=bool(assignment.request.get("stdin")),
    )
    return answer(DirectiveView(do="hold", assignment=view))


def _secrets(context: Context, assignment: Assignment) -> dict[str, str]:
    """Returns the claim's secrets as its command gets them. A row of the release before contains them unencrypted."""
    stored = assignment.secrets
    return context.cipher.decrypt(assignment.claim, stored) if isinstance(stored, str) else stored or {}
