"""Checks what the types of a claim's request cannot express, and returns all mistakes at once, each with its field."""

from typing import NamedTuple

from ..model.duration import seconds
from ..model.pool import FieldProblem, Pool
from .claim_shapes import ClaimRequest
from .problems import field_problems

RESERVED = "HOLDFAST_"  # a command that got another HOLDFAST_POD_UID would not be found by it after its agent's death


class Times(NamedTuple):
    """The durations of a request in seconds, with the pool's defaults."""

    lease: float | None
    max_duration: float
    deadline: float
    park_ttl: float | None


def check(request: ClaimRequest, pool: Pool, *, passes_input: bool) -> Times:
    """Returns the request's durations. Raises a Problem with all mistakes of the request."""
    found: list[FieldProblem] = []
    written = {
        "wait": request.wait,
        "deadline": request.deadline,
        "lease": request.lease,
        "maxDuration": request.max_duration,
        "parkTTL": request.park_ttl,
    }
    given: dict[str, float] = {}
    for field, text in written.items():
        if text is not None:
            try:
                given[field] = seconds(text)
            except ValueError as error:
                found.append(FieldProblem(field, str(error)))
    times = Times(
        lease=given.get("lease", pool.spec.lease),
        max_duration=given.get("maxDuration", pool.spec.max_duration),
        deadline=given.get("deadline", 1.0),
        park_ttl=given.get("parkTTL"),
    )
    found += _times(times, pool) + _work(request, pool)
    if request.stdin:
        found += _input(request, pool, passes_input)
    if found:
        raise field_problems(found)
    return times


def _times(times: Times, pool: Pool) -> list[FieldProblem]:
    found = []
    longest = times.max_duration
    if longest > pool.spec.max_duration or longest <= 0:
        reason = f"must be more than 0s and at most the pool's {pool.spec.max_duration:.0f}s"
        found.append(FieldProblem("maxDuration", reason))
        longest = pool.spec.max_duration  # so that the lease is not refused because of it as well
    if times.lease is not None and not 1 <= times.lease <= longest:
        found.append(FieldProblem("lease", "must be at least 1s and at most maxDuration"))
    if times.deadline <= 0:
        found.append(FieldProblem("deadline", "must be longer than 0s"))
    return found


def _work(request: ClaimRequest, pool: Pool) -> list[FieldProblem]:
    found: list[FieldProblem] = []

    def refuse(field: str, reason: str) -> None:
        found.append(FieldProblem(field, reason))

    if pool.spec.mode == "job" and not request.command and not pool.spec.has_command:
        hint = f"give one, as in `holdfast run --pool {pool.name} -- make test`"
        refuse("command", f"pool {pool.name!r} runs the claim's own command, and none is given; {hint}")
    if request.command and pool.spec.mode == "session":
        hint = f"leave it out and hold a worker, as in `holdfast claim --pool {pool.name}`"
        refuse("command", f"pool {pool.name!r} is for sessions, which run no command; {hint}")
    if request.command and pool.spec.worker.run:
        refuse("command", f"pool {pool.name!r} runs its own command (worker.run); leave it out to run that")
    if request.secrets and not pool.spec.worker.agent:
        refuse("secrets", f"pool {pool.name!r} has no agent that could receive them")
    if request.secrets and request.retry:
        refuse("secrets", "are erased at hand-over, so a retry could not have them; leave out retry or secrets")
    if request.retry and pool.spec.mode == "session":
        refuse("retry", "only jobs can be run again")
    for field, names in (("env", request.env), ("secrets", request.secrets)):
        for name in names:
            if name.startswith(RESERVED):
                refuse(f"{field}.{name}", f"names that begin with {RESERVED} are reserved, because Holdfast sets them")
    return found


def _input(request: ClaimRequest, pool: Pool, passes_input: bool) -> list[FieldProblem]:
    """Returns why the command could not read what its caller sends."""
    reasons = []
    if pool.spec.mode == "session":
        reasons.append(f"pool {pool.name!r} is for sessions, which run no command")
    elif not pool.spec.worker.agent:
        reasons.append(f"pool {pool.name!r} has no agent that could pass it on")
    elif not passes_input:
        reasons.append("workers on Kubernetes cannot pass input to a command; send a payload instead")
    if request.retry:
        reasons.append("is sent once, so a retry could not have it; leave out retry or stdin")
    return [FieldProblem("stdin", reason) for reason in reasons]
