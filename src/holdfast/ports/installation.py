"""What the store keeps of the installation as a whole: replicas and terms, the brake, history, tokens."""

from collections.abc import Sequence
from typing import Any, Protocol

from .records import Beat, DutyReport, Event
from .recovery import Seen

NOTHING_SEEN = Seen()


class Fleet(Protocol):
    async def join(self, replica: str, pid: int, host: str, url: str, version: str) -> None: ...

    async def leave(self, replica: str) -> None:
        """A replica stops: its terms are free at once."""

    async def beat(
        self,
        replica: str,
        elapsed: float | None,
        term: float,
        reports: Sequence[DutyReport],
        seen: Seen = NOTHING_SEEN,
    ) -> Beat:
        """The replica lives; its terms go on; heard time moves by no more than `elapsed`. A store that shows less than the
        replica has `seen` has lost commits, and recovery begins with this very beat."""

    async def take_term(self, duty: str, replica: str, term: float, stale: float) -> int | None:
        """The term's new number, if it was to be had."""

    async def release_brake(self, reason: str) -> bool: ...

    async def duties(self) -> list[dict[str, Any]]: ...

    async def replicas(self) -> list[dict[str, Any]]: ...

    async def brake(self) -> dict[str, Any]: ...

    async def stop_workers(self, stopping: bool) -> None:
        """Free workers go, busy ones finish, nothing is spawned or given out; or the end of that."""

    async def set_brake(self, limit: int, share: float) -> None: ...


class History(Protocol):
    async def events(
        self,
        *,
        after: str | None,
        limit: int,
        claim: str | None = None,
        worker: str | None = None,
        pool: str | None = None,
        tenant: str | None = None,
        newest: bool = False,
    ) -> tuple[list[Event], str]:
        """Events in commit order, none skipped, none twice; and the cursor to go on from."""

    async def note(self, kind: str, reason: str, **about: str | None) -> None:
        """An event that no transition made."""

    async def prune(self, days: int) -> dict[str, int]: ...

    async def live_outputs(self) -> set[str]:
        """Claims whose output is still to be kept."""


class Access(Protocol):
    async def token(self, hash_: str) -> tuple[str, str, str | None] | None:
        """A token's id, role and tenant, if it is known and has not expired."""

    async def tokens(self) -> list[dict[str, Any]]: ...

    async def make_token(self, id_: str, hash_: str, name: str, role: str, tenant: str | None, expires: float | None) -> None: ...

    async def revoke(self, id_: str) -> bool: ...
