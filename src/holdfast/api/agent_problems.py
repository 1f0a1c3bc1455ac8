"""The refusals of reports about a worker or a claim that the server does not have."""

from .context import Context
from .problems import Problem, unavailable


class UnknownWorker(Problem):
    def __init__(self) -> None:
        super().__init__(409, "unknown-worker", "there is no such worker here; a free agent may try again, a busy one goes on")


class StaleClaim(Problem):
    def __init__(self) -> None:
        super().__init__(409, "stale", "this claim is no longer this worker's")


async def stale_or_unavailable(context: Context) -> Problem:
    """Returns StaleClaim, or 503 while claims are being recovered after lost commits, because the claim may still be found.
    A result that is refused just before the loss is detected is not lost: the agent has stored it, and the end of its pod is
    recorded with that result."""
    if (await context.store.recovery.state()).uncertain:
        return unavailable("the database lost commits, and claims are being found again")
    return StaleClaim()
