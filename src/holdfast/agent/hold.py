"""A claim while we have it, and the end of an agent's life."""

import asyncio

from .messages import Assignment, Directive

GRACE = "grace ran out"  # what ended a hold, beside the server's "end"

# We know of its tenant, and a database that lost this would take us for new: so we are nobody's from then on.
NOT_OURS = "it was told about a claim that is no longer its own"


class Leave(Exception):
    """The agent's life is over, with this exit code and for this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Hold:
    """A claim that we were given. `ended` is done once it is no longer ours."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.ended: asyncio.Future[Directive] = asyncio.get_running_loop().create_future()
        self.accepted = False  # our acknowledgement was

    def end(self, directive: Directive) -> None:
        if not self.ended.done():
            self.ended.set_result(directive)
