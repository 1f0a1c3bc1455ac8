"""Classify why the cluster refused an object, by the code and the fixed parts of its answer, not by text that users wrote."""

import re
from collections.abc import Callable

from ..model.pool import FieldProblem
from ..ports.cluster import ClusterUnavailable, Refused
from .api import FAILED_WEBHOOK, ApiRefused

# Kubernetes answers all of these with 403 Forbidden. Only its fixed words after the object's name distinguish them.
FORBIDDEN = re.compile(r'^[a-z0-9.]+ "[^"]*" is forbidden: (?P<why>.*)$', re.DOTALL)
QUOTA = ("exceeded quota", "failed quota")
LIMIT = ("maximum ", "minimum ", "[maximum ", "[minimum ", "memory max limit", "cpu max limit")
WEBHOOK = ("admission webhook ", FAILED_WEBHOOK)
# Strict validation answers only with text. What we find in it is shown to the user, and no decision depends on it.
STRICT = ": strict decoding error: "
UNKNOWN = re.compile(r'unknown field "((?:[^"\\]|\\.)*)"')
LONGEST = 500


def other_uid(refused: ApiRefused) -> bool:
    """Returns whether the write was refused because the object now has another UID."""
    return refused.code == 422 and any(cause.field == "metadata.uid" for cause in refused.status.causes)


def of_create(refused: ApiRefused) -> Refused:
    status = refused.status
    text = status.message[:LONGEST]
    forbidden = FORBIDDEN.match(status.message)
    why = forbidden["why"] if forbidden else ""
    if status.code == 403 and why.startswith(QUOTA):
        return Refused("quota", text)
    if status.code == 403 and why.startswith(LIMIT):
        return Refused("limit", text)
    if status.message.startswith(WEBHOOK):
        return Refused("webhook", text)
    if status.code in (400, 422):
        return Refused("invalid", text)
    return Refused("other", text)


def of_check(refused: ApiRefused, place: Callable[[str], str]) -> list[FieldProblem]:
    """Returns the refusal of a dry run as problems of the pool's fields. `place` maps a field of the object to the pool's field.
    A quota gives no problem, because it is a state of the cluster and not a mistake in the pool."""
    refusal = of_create(refused)
    if refusal.kind == "quota":
        return []
    if refused.code not in (400, 403, 422):
        raise ClusterUnavailable(f"the API server refused a dry run: {refusal.reason}") from refused
    _, _, strict = refused.status.message.partition(STRICT)
    causes = [FieldProblem(place(cause.field), cause.message) for cause in refused.status.causes]
    causes += [FieldProblem(place(field), "unknown field") for field in UNKNOWN.findall(strict)]
    return causes or [FieldProblem(place(""), refusal.reason)]
