"""The bodies of requests and responses between agents and the server (docs/worker-protocol.md)."""

from typing import Annotated, Any, Literal

import msgspec

from ..model.pool import WorkerSpec

POLL_SECONDS = 20
Fence = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
# Grows when the database loses commits. An agent sends back the last one that it received, so that a report from before the loss
# can be recognized, for example one that lay in the socket of a paused replica.
Incarnation = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Register(msgspec.Struct, frozen=True):
    worker: Annotated[str, msgspec.Meta(max_length=128)]
    uid: Annotated[str, msgspec.Meta(max_length=128)]
    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    protocol: int = 1


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    expires_in: int
    install: str
    poll_seconds: int
    mode: Literal["job", "session"]
    worker: WorkerSpec
    grace: float
    output_limit: int


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    doing: Literal["idle", "activating", "running", "resetting", "draining"]
    claim: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    fence: Fence | None = None
    tenant: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    served_fence: Fence | None = msgspec.field(default=None, name="reset_fence")  # of the last claim that the agent has served
    endpoint: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    credential: Annotated[str, msgspec.Meta(max_length=128)] | None = None  # proves that it holds `claim`
    incarnation: Incarnation | None = None
    wait: Annotated[float, msgspec.Meta(ge=0, le=60)] = POLL_SECONDS


class AssignmentView(msgspec.Struct, frozen=True, kw_only=True):
    claim: str
    fence: int
    tenant: str
    command: list[str]
    payload: Any
    env: dict[str, str]
    secrets: dict[str, str]
    credential: str
    protected: bool
    max_seconds: float


class DirectiveView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    do: Literal["nothing", "hold", "end", "exit"]
    fence: int | None = None
    reason: str = ""
    park: bool = False
    assignment: AssignmentView | None = None
    incarnation: int | None = None


class Fenced(msgspec.Struct, frozen=True):
    fence: Fence


class Acknowledge(msgspec.Struct, frozen=True):
    fence: Fence
    endpoint: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    incarnation: Incarnation | None = None


class ResultReport(msgspec.Struct, frozen=True):
    fence: Fence
    exit_code: Annotated[int, msgspec.Meta(ge=-1024, le=1024)]
    reason: str = ""


class Refusal(msgspec.Struct, frozen=True):
    fence: Fence
    reason: str = ""
    output: str = ""  # the last lines that the hook wrote, without secrets


class Failure(msgspec.Struct, frozen=True):
    reason: str = ""
    output: str = ""  # the last lines that the served process or its reset wrote, without secrets


class LogReport(msgspec.Struct, frozen=True):
    text: str


class Accepted(msgspec.Struct, frozen=True):
    claim: str
