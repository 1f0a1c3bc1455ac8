"""A pool's specification: what users write, its defaults, and the checks, which name the field and the reason."""

import hashlib
import re
from typing import Annotated, Any, Literal

import msgspec

from .activation import FAILING_CLAIMS
from .duration import Duration, seconds
from .shown import ONE_LINE_MUST, is_safe

NAME_MUST = "be a DNS label such as linux-large: a-z, 0-9 and '-', first a letter, at most 53 characters"
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$(?!\n)",
        description="a DNS label",
        examples=["linux"],
        extra={"must": NAME_MUST},
    ),
]
Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Arg = Annotated[str, msgspec.Meta(max_length=32_768)]
Argv = Annotated[list[Arg], msgspec.Meta(max_length=256)]


class _Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class WorkerSpec(_Spec, frozen=True):
    """What a worker runs. Without an agent, its claim is active as soon as the pod is protected, and it serves one claim only."""

    run: Argv = []
    serve: Argv = []
    activate: Argv = []
    reset: Argv = []
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 8080
    # Where `serve` listens. None is the same as "port", but `doctor` complains, because every user of the machine can connect.
    listen: Literal["socket", "isolated", "port"] | None = None
    agent: bool = True


class ClaimSpec(_Spec, frozen=True):
    lease: Duration = "60s"
    max_duration: Duration | None = None  # 6h for jobs, 24h for sessions


class ParkSpec(_Spec, frozen=True):
    ttl: Duration = "1m"
    max_ttl: Duration = msgspec.field(default="1h", name="maxTTL")
    min: Count = 0
    max: Count | None = None


class ProtectionSpec(_Spec, frozen=True):
    mode: Literal["claim", "always", "off"] = "claim"
    required: bool = False


class DrainSpec(_Spec, frozen=True):
    grace: Duration = "1h"


class RolloutSpec(_Spec, frozen=True):
    max_unavailable: (
        Annotated[
            str,
            msgspec.Meta(pattern=r"^[0-9]{1,5}%?$(?!\n)", extra={"must": "be a number of workers or a share such as 25%"}),
        ]
        | Count
    ) = "25%"


class HeadroomSpec(_Spec, frozen=True):
    mode: Literal["off", "constant"] = "off"
    slots: Count = 0


class NetworkSpec(_Spec, frozen=True):
    seal: bool = False
    egress: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=64)] = []
    ingress: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=64)] = []


class PoolSpec(_Spec, frozen=True):
    mode: Literal["job", "session"] = "job"
    warm: Count = 1
    max: Count = 10
    start_timeout: Duration = "10m"
    silence: Literal["alert", "retire"] = "alert"
    worker: WorkerSpec = WorkerSpec()
    pod: dict[str, Any] = {}
    claim: ClaimSpec = ClaimSpec()
    park: ParkSpec = ParkSpec()
    protection: ProtectionSpec = ProtectionSpec()
    drain: DrainSpec = DrainSpec()
    rollout: RolloutSpec = RolloutSpec()
    headroom: HeadroomSpec = HeadroomSpec()
    network: NetworkSpec = NetworkSpec()
    labels: Annotated[list[Annotated[str, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=64)] = []

    @property
    def max_duration(self) -> float:
        return seconds(self.claim.max_duration or ("6h" if self.mode == "job" else "24h"))

    @property
    def lease(self) -> float | None:
        """Returns the lease in seconds, or None for jobs. A job ends by its result, so a silent caller must not end it."""
        return seconds(self.claim.lease) if self.mode == "session" else None

    @property
    def has_command(self) -> bool:
        """Returns whether a job can run without a command of its claim: the pool sets one, or the template's first container."""
        if self.worker.run or not self.worker.agent:
            return True
        template = self.pod.get("spec")
        containers = template.get("containers") if isinstance(template, dict) else None
        first = containers[0] if isinstance(containers, list) and containers else None
        return isinstance(first, dict) and bool(first.get("command"))

    def unavailable(self, workers: int) -> int:
        """Returns how many free workers a rollout may replace at the same time, at least 1."""
        limit = str(self.rollout.max_unavailable)
        count = workers * int(limit[:-1]) // 100 if limit.endswith("%") else int(limit)
        return max(1, count)


class FieldProblem(msgspec.Struct, frozen=True):
    """One problem with an input: the field and the reason."""

    field: str
    reason: str


def problems(spec: PoolSpec) -> list[FieldProblem]:
    """Returns the problems that the types cannot express: values that contradict each other or make no sense."""
    found: list[FieldProblem] = []

    def refuse(field: str, reason: str) -> None:
        found.append(FieldProblem(field, reason))

    durations = {
        "startTimeout": spec.start_timeout,
        "claim.lease": spec.claim.lease,
        "claim.maxDuration": spec.claim.max_duration,
        "park.maxTTL": spec.park.max_ttl,
    }
    for field, value in durations.items():
        if value is not None and _seconds(value, field, refuse) == 0:
            refuse(field, "must be longer than 0s")
    for field, value in {"park.ttl": spec.park.ttl, "drain.grace": spec.drain.grace}.items():
        _seconds(value, field, refuse)
    if found:
        return found
    if spec.warm > spec.max:
        refuse("warm", f"warm ({spec.warm}) must not exceed max ({spec.max})")
    if seconds(spec.claim.lease) < 1:
        refuse("claim.lease", "must be at least 1s: a renewal has to fit into it")
    if spec.mode == "session" and seconds(spec.claim.lease) > spec.max_duration:
        refuse("claim.lease", "must not exceed claim.maxDuration")
    if seconds(spec.park.ttl) > seconds(spec.park.max_ttl):
        refuse("park.ttl", "must not exceed park.maxTTL")
    if spec.park.max is not None and spec.park.min > spec.park.max:
        refuse("park.min", "must not exceed park.max")
    if spec.mode == "job" and spec.worker.serve:
        refuse("worker.serve", "only sessions serve; a job pool runs worker.run or the claim's command")
    if spec.mode == "job" and spec.worker.listen is not None:
        refuse("worker.listen", "only sessions serve, so a job has nothing that listens")
    if spec.mode == "session" and spec.worker.run:
        refuse("worker.run", "only jobs run a command; a session pool starts worker.serve")
    if spec.mode == "session" and not spec.worker.agent:
        refuse("worker.agent", "a session needs the agent, which guards its port")
    if spec.network.seal and spec.mode == "session":
        refuse("network.seal", "a session's agent needs the control channel; only jobs can be sealed")
    if re.fullmatch(r"[0-9]+%", str(spec.rollout.max_unavailable)) and int(str(spec.rollout.max_unavailable)[:-1]) > 100:
        refuse("rollout.maxUnavailable", "must be at most 100%")
    # This is not a pattern of the type, because pools that an older release stored must still be read.
    for n, label in enumerate(spec.labels):
        if not is_safe(label):
            refuse(f"labels[{n}]", ONE_LINE_MUST)
    if spec.headroom.mode == "constant" and spec.headroom.slots == 0:
        refuse("headroom.slots", "must be at least 1 with mode: constant")
    return found


def _seconds(value: str, field: str, refuse: Any) -> float | None:
    try:
        return seconds(value)
    except ValueError as error:
        refuse(field, str(error))
        return None


def revision_of(spec: PoolSpec) -> str:
    """Returns a hash of Holdfast's own template. A comparison with live pods would roll out forever if a webhook changes them."""
    worker = msgspec.to_builtins(spec.worker)
    if spec.worker.listen in (None, "port"):
        del worker["listen"]  # the hash of a pool from before this field must stay, otherwise an upgrade would roll it out
    template = msgspec.json.encode(
        [spec.mode, worker, spec.pod, spec.drain, spec.network.seal, spec.protection.mode == "always"],
        order="sorted",
    )
    return hashlib.sha256(template).hexdigest()[:10]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as stored. `id` is its identity: a new pool under an old name is another pool."""

    id: str
    name: str
    spec: PoolSpec
    revision: str
    state: Literal["live", "draining", "gone"]
    source: Literal["api", "cr"]
    created_at: float
    frozen: str | None = None  # the reason while the pool is frozen, otherwise None
    backoff_until: float | None = None
    failures: int = 0
    trouble: str | None = None  # why the last spawn failed or is delayed, for people to read
    activation_trouble: str | None = None  # why the last activation failed, until one succeeds
    claims_failing: int = 0  # different claims whose activation failed since one succeeded, counted up to FAILING_CLAIMS
    activation_retry_at: float | None = None  # when the next claim is tried, if activations fail
    generation: int = 1

    @property
    def activations_fail(self) -> bool:
        """Returns whether so many claims failed that the pool gives out at most one at a time. The same rule as `@failing`."""
        return self.claims_failing >= FAILING_CLAIMS

    @property
    def troubles(self) -> str | None:
        """Returns what is wrong with its starts and its activations, for operators to read."""
        activation = self.activation_trouble and f"activation fails: {self.activation_trouble}"
        return "; ".join(filter(None, (self.trouble, activation))) or None

    @property
    def troubles_without_output(self) -> str | None:
        """Returns the same without the hook's lines, because they may contain data of a tenant."""
        activation = self.activation_trouble and "activation fails"
        return "; ".join(filter(None, (self.trouble, activation))) or None
