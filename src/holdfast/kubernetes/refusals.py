"""Say why the cluster would not take a pod, by what its answer is rather than by what it echoes."""

import re

from ..model.pool import Problem
from ..ports.cluster import ClusterUnavailable, Refused
from .api import ApiRefused

# Kubernetes says all of these as 403 Forbidden: only its own fixed words after the object's name tell them apart.
FORBIDDEN = re.compile(r'^pods "[^"]*" is forbidden: (?P<why>.*)$', re.DOTALL)
QUOTA = ("exceeded quota", "failed quota")
LIMIT = ("maximum ", "minimum ", "[maximum ", "[minimum ", "memory max limit", "cpu max limit")
WEBHOOK = ("admission webhook ", "Internal error occurred: failed calling webhook")
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


def of_check(refused: ApiRefused) -> list[Problem]:
    """As problems of the pool: where, and why. A quota is a state of the cluster, not a fault of the template."""
    said = of_create(refused)
    if said.kind == "quota":
        return []
    if refused.code not in (400, 403, 422):
        raise ClusterUnavailable(f"the API server refused a dry run: {refused.status.reason}") from refused
    causes = [Problem(f"pod.{cause.field}" if cause.field else "pod", cause.message) for cause in refused.status.causes]
    return causes or [Problem("pod", said.reason)]
