"""The errors that the client raises.

HoldfastError
├── NotConfigured      no server or no token is known here
├── Unreachable        no replica answered; `sent` is True if a replica may have received the request
├── Refused            a replica answered with a problem: `problem` has code, status, detail and errors
│   ├── Denied         401, 403: the token is unknown, or may not do this
│   ├── NotFound       404
│   ├── Conflict       409: stale fence, the key of another request, a worker that is held
│   ├── Invalid        400, 413, 422: fields are wrong; `problem.errors` names all of them, with the reasons
│   └── Unavailable    502, 503, 504: nothing was lost; `retry_after` is when to try again, in seconds
├── ClaimEnded         the claim ended before it became active: `claim` has outcome and reason
└── LeaseLost          the worker is no longer ours: the lease ran out, or the claim was ended
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .answers import Claim


class FieldError(msgspec.Struct, frozen=True):
    """One field that the server refused, and why."""

    field: str = ""
    reason: str = ""


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """An `application/problem+json` answer."""

    status: int = 0
    code: str = ""
    title: str = ""
    detail: str = ""
    errors: list[FieldError] = []

    def __str__(self) -> str:
        """Returns one line with every field that is wrong, so that a person can correct it."""
        fields = "; ".join(f"{error.field}: {error.reason}" for error in self.errors)
        text = self.detail or self.title or f"HTTP {self.status}"
        return f"{text} ({fields})" if fields and fields not in text else text


class HoldfastError(Exception):
    """The base class of all errors that this package defines."""


class NotConfigured(HoldfastError):
    """No server or no token is known here."""


class Unreachable(HoldfastError):
    """No replica answered. If `sent` is True, a replica may have received the request and carried it out."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class Refused(HoldfastError):
    """A replica answered with a problem."""

    def __init__(self, problem: ProblemDetails, *, retry_after: float | None = None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def code(self) -> str:
        return self.problem.code


class Denied(Refused):
    """The token is unknown, or may not do this."""


class NotFound(Refused):
    """The thing does not exist, or this token may not see it."""


class Conflict(Refused):
    """The request contradicts the current state: a stale fence, the key of another request, a held worker."""


class Invalid(Refused):
    """Fields are wrong. `problem.errors` names all of them, each with its reason."""


class Unavailable(Refused):
    """The replica cannot serve at the moment; nothing was lost."""


class ClaimEnded(HoldfastError):
    """The claim ended before it became active."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(f"claim {claim.id} ended as {claim.outcome}: {claim.reason or 'no reason given'}")
        self.claim = claim


class LeaseLost(HoldfastError):
    """The holder no longer has the worker. Its credential is refused, and its connections are closed."""

    def __init__(self, claim_id: str, why: str) -> None:
        super().__init__(f"claim {claim_id} is lost: {why}")
        self.claim_id = claim_id
        self.why = why


_BY_STATUS: dict[int, type[Refused]] = {
    400: Invalid,
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    422: Invalid,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def refusal(status: int, body: bytes, retry_after: float | None = None) -> Refused:
    """Returns the error for an answer. Its class depends on the status only, because a proxy's error page is no problem+json."""
    try:
        problem = msgspec.json.decode(body, type=ProblemDetails)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = ProblemDetails(detail=body[:200].decode(errors="replace").strip())
    problem = msgspec.structs.replace(problem, status=status)
    return _BY_STATUS.get(status, Refused)(problem, retry_after=retry_after)
