"""Errors as problem+json, with the field and the reason, so that the caller can correct the request."""

from typing import Any

import msgspec
from starlette.responses import Response

from ..model.mistakes import mistakes
from ..model.pool import FieldProblem

TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    422: "Refused",
    429: "Too many",
    500: "Internal error",
    503: "Not available",
}


class ProblemBody(msgspec.Struct, frozen=True, rename={"type_": "type"}):
    """The body of every error (RFC 9457). Programs must decide by `status` and `code`, never by the text."""

    type_: str
    title: str
    status: int
    detail: str
    code: str
    problems: list[FieldProblem] = []  # all fields that are wrong
    errors: list[FieldProblem] = []  # the same list, under the name that earlier releases gave it


class Problem(Exception):
    """An error answer. It may be raised anywhere in a handler, but only if the request changed nothing."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: list[FieldProblem] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.errors, self.headers = (
            status,
            code,
            detail,
            errors or [],
            headers or {},
        )

    def response(self) -> Response:
        title = TITLES.get(self.status, "Error")
        body = ProblemBody(f"urn:holdfast:{self.code}", title, self.status, self.detail, self.code, self.errors, self.errors)
        return Response(
            msgspec.json.encode(body),
            self.status,
            {**self.headers, "Content-Type": "application/problem+json"},
        )


def not_found(noun: str, name: str, hint: str = "") -> Problem:
    return Problem(404, "not-found", f"there is no {noun} {name!r}{hint}")


def refused(field: str, reason: str) -> Problem:
    return Problem(422, "invalid", f"{field}: {reason}", [FieldProblem(field, reason)])


def invalid(error: msgspec.ValidationError, value: Any, kind: Any, *, lax: bool = False) -> Problem:
    """Returns the refusal of a value that msgspec refused, with all of its mistakes."""
    return field_problems([FieldProblem(found.field or "body", found.reason) for found in mistakes(value, kind, error, lax=lax)])


def unavailable(what: str) -> Problem:
    return Problem(503, "unavailable", f"{what}; nothing was lost, try again", headers={"Retry-After": "2"})


def revoked() -> Problem:
    return Problem(
        401, "unauthenticated", "the token was revoked or expired while the request waited; nothing was given out to it"
    )


def not_now(by: str, pool: str) -> str:
    """Returns a sentence on what forbids the change at the moment, and what to do about it."""
    return {
        "frozen": f"pool {pool!r} is frozen, so nothing in it is ended; `holdfast thaw {pool}` ends that",
        "braked": "the brake of the fleet or of its tenant is tripped; `holdfast brake` shows why, and `holdfast brake release` releases it",
        "recovering": "the database lost commits, and pods are being compared; that ends by itself, try again in a minute",
        "busy": "its agent reports a claim that its row does not show; `holdfast recover` shows which one",
    }.get(by, f"not now: {by}")


def name_problems(name: str, kind: Any) -> list[FieldProblem]:
    """Returns what is wrong with a name in a path, for routes that create something under it."""
    try:
        msgspec.convert(name, kind)
    except msgspec.ValidationError as error:
        return [FieldProblem("name", found.reason) for found in mistakes(name, kind, error)]
    return []


def field_problems(found: list[FieldProblem], prefix: str = "") -> Problem:
    errors = [FieldProblem(f"{prefix}{p.field}", p.reason) for p in found]
    return Problem(422, "invalid", "; ".join(f"{e.field}: {e.reason}" for e in errors), errors)


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
