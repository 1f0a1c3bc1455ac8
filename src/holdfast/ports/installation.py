"""What the store keeps about the installation as a whole: replicas and terms, the brake, history, tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Unpack

from ..model.brake import BrakeLimits
from ..model.event import Actor
from .records import Beat, DutyReport, Event, EventFilters
from .recovery import Seen

NOTHING_SEEN = Seen()


class Fleet(Protocol):
    async def join(self, replica: str, pid: int, host: str, url: str, version: str) -> None: ...

    async def leave(self, replica: str) -> None:
        """Removes a replica that stops. Other replicas can take its terms at once."""

    async def beat(
        self,
        replica: str,
        elapsed: float | None,
        term: float,
        reports: Sequence[DutyReport],
        seen: Seen = NOTHING_SEEN,
    ) -> Beat:
        """Records that the replica is alive, renews its terms, and moves heard time on by at most `elapsed`. If the database
        shows less than the replica has `seen`, it has lost commits: recovery begins in the same transaction."""

    async def take_term(self, duty: str, replica: str, term: float, stale: float) -> int | None:
        """Takes the term of a duty if it is free, has run out, or its duty has made no progress for `stale` seconds. Returns its
        new number, or None."""

    async def release_brake(self, reason: str, actor: Actor | None = None, tenant: str | None = None) -> bool:
        """Releases the fleet's brake, or that of `tenant`. Returns False if it is not tripped."""

    async def set_brake(self, limits: BrakeLimits, actor: Actor | None = None) -> None: ...

    async def duties(self) -> list[dict[str, Any]]: ...

    async def replicas(self) -> list[dict[str, Any]]: ...

    async def brake(self) -> dict[str, Any]:
        """Returns the fleet's brake with its limits, and in `tenants` the brakes of tenants that are tripped."""

    async def stop_workers(self, stopping: bool) -> None:
        """Stops the workers of the installation: free ones end, busy ones finish, and nothing is spawned or given out. False ends
        this."""


class History(Protocol):
    async def events(
        self,
        *,
        limit: int,
        after: str | None = None,
        before: str | None = None,
        newest: bool = False,
        **about: Unpack[EventFilters],
    ) -> tuple[list[Event], str]:
        """Returns events in commit order, without gaps or repetitions, and the cursor to continue from. With `newest` or `before`
        it returns the last events (before that cursor), otherwise the first ones. Raises ValueError for a wrong cursor."""

    async def note(self, kind: str, reason: str, **about: str | None) -> None:
        """Writes an event that does not belong to a transition."""

    async def prune(self, days: int) -> dict[str, int]: ...

    async def live_outputs(self) -> set[str]:
        """Returns the claims whose output is kept, unless it is too much for its tenant."""

    async def excess_outputs(self, sizes: Mapping[str, int]) -> set[str]:
        """Returns the oldest ended claims whose outputs exceed what their tenants may keep. `sizes` are bytes per claim."""


class Tokens(Protocol):
    async def by_hash(self, hash_: str) -> tuple[str, str, str | None, str] | None:
        """Returns a token's id, role, tenant and name, or None when the token is unknown or expired."""

    async def all(self) -> list[dict[str, Any]]: ...

    async def make(
        self,
        id_: str,
        hash_: str,
        name: str,
        role: str,
        tenant: str | None,
        expires: float | None,
        actor: Actor | None = None,
    ) -> None:
        """Stores the token's hash, unless it is known. `actor` made the request; without one, no event is written."""

    async def revoke(self, id_: str, actor: Actor | None = None) -> bool:
        """Deletes a token, and notifies all replicas. Returns False if there is no such token."""

    async def claims_of(self, id_: str) -> list[str]:
        """Returns the claims that have not ended and were requested with this token, which may be revoked already."""
