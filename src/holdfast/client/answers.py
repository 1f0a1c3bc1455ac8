"""The server's answers. Unknown fields are ignored, so that this client works with a newer server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

import msgspec

T = TypeVar("T")


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Page(_Answer, Generic[T], frozen=True, kw_only=True, dict=True):
    """One page of a list. `async for item in page` also yields the items of the following pages, which it reads when needed."""

    items: list[T]
    next: str | int | None = None  # the cursor of the following page
    previous: str | int | None = None  # the cursor of the page before, in a list of events

    def followed_by(self, read: Callable[[str | int], Awaitable[Self]]) -> Self:
        """Returns this page. Its following pages are read with `read`, which gets the cursor."""
        self.__dict__["_read"] = read  # not a field, because it is no part of the server's answer
        return self

    async def following(self) -> Self | None:
        """Returns the following page, or None after the last one."""
        read = self.__dict__.get("_read")
        if self.next is None or not self.items or read is None:  # a list of events always has a `next`
            return None
        page: Self = await read(self.next)
        return page

    async def __aiter__(self) -> AsyncIterator[T]:
        page: Page[T] | None = self
        while page is not None:
            for item in page.items:
                yield item
            page = await page.following()


class Timings(_Answer, frozen=True, kw_only=True):
    """Seconds that a claim waited for its last worker, was handed over, and was held. A retry starts them again."""

    wait: float | None = None
    hand_over: float | None = None
    hold: float | None = None


class Claim(_Answer, frozen=True, kw_only=True):
    id: str
    state: str
    pool: str = ""
    tenant: str = ""
    reason: str | None = None
    key: str | None = None
    worker: str | None = None
    endpoint: str | None = None
    credential: str | None = None
    fence: int | None = None
    protected: bool | None = None
    lease_until: datetime | None = None
    max_until: datetime | None = None
    deadline_at: datetime | None = None
    attempts: int = 0
    priority: int = 0  # as granted
    requested_priority: int | None = None  # only if it is more than was granted
    priority_reason: str | None = None  # why less was granted than requested
    outcome: str | None = None
    exit_code: int | None = None
    created_at: datetime | None = None
    assigned_at: datetime | None = None
    active_at: datetime | None = None
    ended_at: datetime | None = None
    timings: Timings | None = None
    labels: dict[str, str] = {}

    @property
    def active(self) -> bool:
        return self.state == "active"

    @property
    def ended(self) -> bool:
        return self.state == "ended"

    def __repr__(self) -> str:  # without the credential, which would end up in logs
        return f"Claim(id={self.id!r}, state={self.state!r}, outcome={self.outcome!r}, worker={self.worker!r})"


class Pool(_Answer, frozen=True, kw_only=True):
    name: str
    id: str = ""
    revision: str = ""
    state: str = ""
    frozen: str | bool | None = None
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class Worker(_Answer, frozen=True, kw_only=True):
    id: str
    state: str
    pool: str = ""
    claim: str | None = None
    tenant: str | None = None
    reason: str | None = None
    revision: str | None = None
    node: str | None = None
    endpoint: str | None = None


class Unconfirmed(_Answer, frozen=True, kw_only=True):
    """A worker that has not reported since the database lost commits, and what each decision would do."""

    worker: str
    pool: str = ""
    state: str = ""
    since: str = ""
    claim: str | None = None
    claim_state: str | None = None
    tenant: str | None = None
    doing: str | None = None
    reported_claim: str | None = None
    confirm: str = ""
    give_up: str = ""


class Recovery(Page[Unconfirmed], frozen=True, kw_only=True):
    """Returns whether a recovery is in progress. `items` are the workers that are still unconfirmed."""

    recovering: bool
    since: str | None = None
    reason: str | None = None


class Tenant(_Answer, frozen=True, kw_only=True):
    name: str
    spec: dict[str, Any] = {}


class Actor(_Answer, frozen=True, kw_only=True):
    """The token with which somebody caused an event."""

    id: str
    name: str = ""
    role: str = ""


class Applied(_Answer, frozen=True, kw_only=True):
    """What `apply` did with one object: `result` is created, configured or unchanged. The specs have all defaults filled in."""

    kind: str
    name: str
    result: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] = {}


class Event(_Answer, frozen=True, kw_only=True):
    kind: str
    id: str | int = ""
    at: str | float = ""
    pool: str | None = None
    worker: str | None = None
    claim: str | None = None
    tenant: str | None = None
    reason: str | None = None
    data: Any = None
    actor: Actor | None = None  # None if Holdfast or an agent caused it


class Explanation(_Answer, frozen=True, kw_only=True):
    kind: str
    id: str
    sentences: list[str] = []
    facts: dict[str, Any] = {}


class Duty(_Answer, frozen=True, kw_only=True):
    """A duty: its holder, how much it did, and `age`, the seconds since its last success."""

    duty: str = ""
    name: str = ""
    holder: str | None = None
    number: int | None = None
    age: float | None = None
    seconds: float | None = None
    actions: int | None = None
    skips: int | None = None
    failure: str | None = None


class Replica(_Answer, frozen=True, kw_only=True):
    id: str
    state: str = ""
    url: str = ""
    pid: int | None = None
    version: str | None = None
    duties: list[str] = []
    started_at: str | None = None
    seen_at: str | None = None


class Check(_Answer, frozen=True, kw_only=True):
    name: str
    ok: bool
    promise: str | None = None
    detail: str | None = None
    advice: str | None = None


class Doctor(_Answer, frozen=True, kw_only=True):
    ok: bool
    checks: list[Check] = []


class Token(_Answer, frozen=True, kw_only=True):
    """A token's row. `token` itself is only in the answer to the request that created it."""

    id: str
    name: str = ""
    role: str = ""
    tenant: str | None = None
    token: str | None = None
    created_at: str | None = None
    expires_at: str | None = None

    def __repr__(self) -> str:
        return f"Token(id={self.id!r}, name={self.name!r}, role={self.role!r}, tenant={self.tenant!r})"


class Identity(_Answer, frozen=True, kw_only=True):
    """The role and tenant that the server stored for a token."""

    role: str
    name: str | None = None
    tenant: str | None = None
