"""Short helpers that return what `converge` decides about one worker."""

from typing import Any

from converge_views import NAME, UID, pod, seen

from holdfast.duties.actions import Action, Condemn, Proof
from holdfast.duties.cases import classify
from holdfast.duties.observed import Case
from holdfast.model.pod import Pod
from holdfast.ports.store import Row

PROOF = Proof(NAME, UID)
FREE_POD = pod()
FREE = ["warm", "parked"]
BEFORE = {"missing_before": frozenset({NAME})}


def done(one: Row | None, its_pod: Pod | None, **more: Any) -> list[Action]:
    return classify(one, its_pod, seen(one, its_pod, **more)).actions


def case(one: Row | None, its_pod: Pod | None, **more: Any) -> Case:
    return classify(one, its_pod, seen(one, its_pod, **more)).case


def condemned(reason: str, **more: Any) -> Condemn:
    return Condemn(NAME, 5, reason, **more)


def failed_start(reason: str, **more: Any) -> Condemn:
    return condemned(reason, counted=False, pool_id="p-1", trouble=reason, **more)
