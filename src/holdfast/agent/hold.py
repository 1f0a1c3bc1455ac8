"""The claim that an agent holds, and the exception that ends the agent."""

import asyncio

from .messages import Assignment, Directive

GRACE = "grace ran out"  # a value of `Directive.do` that only the agent sets: the grace of its drain is over

# The worker has received a tenant's data. A database that lost this commit would treat the worker as new, so the worker must not
# be used again.
NOT_OURS = "the worker received a claim that is no longer its own"


class Leave(Exception):
    """Ends the agent with this exit code, for this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Hold:
    """A claim that was assigned to this worker. `ended` is done when the worker has to give it up."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.ended: asyncio.Future[Directive] = asyncio.get_running_loop().create_future()
        self.accepted = False  # whether the server accepted the acknowledgement

    def end(self, directive: Directive) -> None:
        if not self.ended.done():
            self.ended.set_result(directive)
