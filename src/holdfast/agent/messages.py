"""The messages between agent and server. Unknown fields are ignored, because either side may be one version newer."""

import msgspec


class Hooks(msgspec.Struct, frozen=True):
    """What the pool's spec sets for its workers: the commands, and where the served process listens."""

    run: list[str] = []
    serve: list[str] = []
    activate: list[str] = []
    reset: list[str] = []
    port: int = 8080
    listen: str | None = None


class Registration(msgspec.Struct, frozen=True):
    token: str
    expires_in: float = 3600
    poll_seconds: float = 20
    mode: str = "job"
    worker: Hooks = Hooks()
    grace: float = 3600
    output_limit: int = 64 * 1024 * 1024

    def __repr__(self) -> str:
        return f"Registration({self.mode})"  # never the token


class Assignment(msgspec.Struct, frozen=True):
    claim: str
    fence: int
    tenant: str
    command: list[str] = []
    payload: msgspec.Raw = msgspec.Raw(b"null")
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    credential: str | None = None
    stdin: bool = False  # whether the caller sends input for the command

    def __repr__(self) -> str:
        return f"Assignment({self.claim}, {self.fence})"  # never its secrets

    def own_variables(self) -> dict[str, str]:
        """Returns the variables of the claim: its environment and its secrets, without names that Holdfast reserves."""
        return {name: value for name, value in (self.env | self.secrets).items() if not name.startswith("HOLDFAST_")}

    @property
    def hidden(self) -> list[str]:
        """Returns the values that must not be shown."""
        return [*self.secrets.values(), self.credential or ""]


class Directive(msgspec.Struct, frozen=True):
    do: str = "nothing"
    assignment: Assignment | None = None
    fence: int | None = None
    reason: str = ""
    park: bool = False
    incarnation: int | None = None  # set if the report was not counted, because the database lost commits since this agent's last


class Input(msgspec.Struct, frozen=True):
    """The next bytes for the command's stdin. `end` is set if nothing comes after them."""

    data: bytes = b""
    end: bool = False

    def __repr__(self) -> str:
        return f"Input({len(self.data)} bytes)"  # it may hold secrets


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's state, which it sends with each poll."""

    doing: str
    claim: str | None = None
    fence: int | None = None
    tenant: str | None = None
    served_fence: int | None = msgspec.field(default=None, name="reset_fence")  # of the last claim that ended here
    endpoint: str | None = None
    credential: str | None = None  # of the claim that the agent holds; it proves the report


class ErrorBody(msgspec.Struct, frozen=True):
    code: str = ""
