"""Say why the cluster would not take an object, by what its answer is rather than by what it echoes."""

import re
from collections.abc import Callable

from ..model.pool import FieldProblem
from ..ports.cluster import ClusterUnavailable, Refused
from .api import FAILED_WEBHOOK, ApiRefused

# Kubernetes says all of these as 403 Forbidden: only its own fixed words after the object's name tell them apart.
FORBIDDEN = re.compile(r'^[a-z0-9.]+ "[^"]*" is forbidden: (?P<why>.*)$', re.DOTALL)
QUOTA = ("exceeded quota", "failed quota")
LIMIT = ("maximum ", "minimum ", "[maximum ", "[minimum ", "memory max limit", "cpu max limit")
WEBHOOK = ("admission webhook ", FAILED_WEBHOOK)
# Strict validation answers with a text alone. What is found in it is only shown.
STRICT = ": strict decoding error: "
UNKNOWN = re.compile(r'unknown field "((?:[^"\\]|\\.)*)"')
LONGEST = 500


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
    """As problems of the pool: where, and why. A quota is a state of the cluster, not a fault of the pool. `place` says which
    of the pool's fields a field of the object comes from."""
    said = of_create(refused)
    if said.kind == "quota":
        return []
    if refused.code not in (400, 403, 422):
        raise ClusterUnavailable(f"the API server refused a dry run: {said.reason}") from refused
    _, _, strict = refused.status.message.partition(STRICT)
    causes = [FieldProblem(place(cause.field), cause.message) for cause in refused.status.causes]
    causes += [FieldProblem(place(field), "unknown field") for field in UNKNOWN.findall(strict)]
    return causes or [FieldProblem(place(""), said.reason)]
