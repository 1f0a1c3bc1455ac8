"""A worker: the row for one pod, from its spawn until its absence is proven."""

from typing import Literal

import msgspec

from .machine import Machine, Transition

State = Literal["spawning", "warm", "held", "parked", "retiring", "gone"]

WORKER = Machine(
    noun="worker",
    states=("spawning", "warm", "held", "parked", "retiring", "gone"),
    initial=("spawning", "held", "retiring"),
    final="gone",
    transitions=(
        Transition(
            "spawn",
            (),
            "spawning",
            "worker.spawning",
            "the pool needs one more; the row is stored before the pod is created",
        ),
        Transition("warm", ("spawning",), "warm", "worker.warm", "it is ready and has served no claim"),
        Transition("hold", ("warm", "parked"), "held", "worker.held", "a claim was assigned to it"),
        Transition("return_warm", ("held",), "warm", "worker.returned", "nothing was ever delivered to it"),
        Transition("return_parked", ("held",), "parked", "worker.returned", "nothing of this claim was delivered"),
        Transition("park", ("held",), "parked", "worker.parked", "kept for its tenant until its TTL"),
        Transition("spend", ("held",), "retiring", "worker.retiring", "its claim ended, and it must not serve another"),
        Transition("condemn", ("spawning", "warm", "parked"), "retiring", "worker.retiring", "it is free and no longer wanted"),
        Transition(
            "disown", ("spawning", "warm"), "retiring", "worker.retiring", "it served a claim that the database does not know"
        ),
        Transition("bury", ("retiring",), "gone", "worker.gone", "its pod is provably absent"),
        Transition("unspawn", ("spawning",), "gone", "worker.gone", "the cluster refused the pod"),
        Transition("adopt_held", (), "held", "worker.adopted", "a stamped pod without a row, after lost commits"),
        Transition("adopt_free", (), "spawning", "worker.adopted", "a free pod without a row, after lost commits"),
        Transition(
            "adopt_spent", (), "retiring", "worker.adopted", "a pod without a row that has served a claim, after lost commits"
        ),
        Transition(
            "rehold",
            ("spawning", "warm", "held", "parked", "retiring", "gone"),
            "held",
            "worker.adopted",
            "its pod or agent holds a claim, after lost commits",
        ),
    ),
)

LOG_HOURS = 24  # a worker's last output can be read for this long after its end

FREE = ("warm", "parked")  # may get a claim
STARTED = ("warm", "parked", "held")  # has been ready and is not retiring, so its agent reports
LIVING = ("spawning", *STARTED)  # its pod may serve a claim, even if the row is older than the claim


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's row, with the facts that the cluster and the agent last reported."""

    id: str
    pool_id: str
    pool: str
    state: State
    version: int
    revision: str
    created_at: float
    state_since: float
    claim: str | None = None
    tenant: str | None = None
    fence: int | None = None
    reason: str | None = None
    parked_since: float | None = None
    park_ttl: float | None = None
    pod_uid: str | None = None
    node: str | None = None
    ready: bool = False
    terminating: bool = False
    schedulable: bool = True
    suspect_since: float | None = None
    unconfirmed_since: float | None = None  # its agent has not reported since the database lost commits

    @property
    def confirmed(self) -> bool:
        """False when the row may be older than what the worker does. Then the worker is not given out and not ended, and its
        claim is neither requeued for a stalled hand-over nor ended by its lease or longest duration, until its agent reports, its
        pod ends, or an operator decides. Nor does a starting worker become warm because its pod is ready. If its holder ends the
        claim, the worker retires, but its pod is not deleted before one of these."""
        return self.unconfirmed_since is None
