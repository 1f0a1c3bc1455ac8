"""Record what really happened in a run: which assignments were delivered, which commands ran, which answers were given."""

from dataclasses import dataclass, field
from typing import NamedTuple

from .pods import WorldPod


class Broken(Exception):
    """A promise was broken. The run ends here."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
        self.what = what


class Start(NamedTuple):
    """A command that started, or a session that opened."""

    claim: str
    fence: int
    worker: str
    uid: str
    at: float


@dataclass
class Book:
    starts: dict[str, list[Start]] = field(default_factory=dict)  # by claim
    served: dict[str, str] = field(default_factory=dict)  # pod UID → the tenant of its first assignment
    doing: dict[str, tuple[str, int]] = field(default_factory=dict)  # pod UID → claim and fence for which it works
    results: dict[tuple[str, int], int] = field(default_factory=dict)  # claim and fence → exit code that an agent stored
    accepted: dict[str, str] = field(default_factory=dict)  # claims whose id a holder received → tenant
    keys: dict[tuple[str, str], str] = field(default_factory=dict)  # tenant and key → claim
    renewed: dict[str, float] = field(default_factory=dict)  # claim → when its lease last started
    released: dict[str, int] = field(default_factory=dict)  # claim → the fence with which its holder released it
    tries: dict[str, int] = field(default_factory=dict)  # claim → how often it was delivered
    forgotten: set[str] = field(default_factory=set)  # claims that a failover lost; membership only

    def delivered(self, pod: WorldPod, tenant: str, claim: str) -> None:
        """Record that an agent received an assignment."""
        self.tries[claim] = self.tries.get(claim, 0) + 1
        before = self.served.setdefault(pod.uid, tenant)
        if before != tenant:
            raise Broken("P1", f"{pod.name} received a claim of {before}, and now serves {claim} of {tenant}")

    def started(self, pod: WorldPod, claim: str, fence: int, at: float, *, again: bool) -> None:
        """Record that a command starts. No other step performs a claim's work."""
        for uid, (other, _) in self.doing.items():
            if other == claim and uid != pod.uid:
                raise Broken("P1", f"{claim} starts on {pod.name} while it still runs elsewhere")
        starts = self.starts.setdefault(claim, [])
        if any(start.fence >= fence for start in starts):
            raise Broken("P8", f"{claim} starts again under fence {fence}, having started under {starts[-1].fence}")
        if starts and not again and claim not in self.forgotten:
            raise Broken("P8", f"{claim} starts twice without retry: lost: on {starts[-1].worker}, then on {pod.name}")
        if len(starts) > 2 and claim not in self.forgotten:
            raise Broken("P8", f"{claim} starts for the {len(starts) + 1}th time")
        starts.append(Start(claim, fence, pod.name, pod.uid, at))
        self.doing[pod.uid] = claim, fence

    def stopped(self, pod: WorldPod) -> None:
        self.doing.pop(pod.uid, None)

    def answered(self, claim: str, tenant: str, key: str | None) -> None:
        """Record that a holder received the id of its claim."""
        self.accepted.setdefault(claim, tenant)
        if key is not None:
            before = self.keys.setdefault((tenant, key), claim)
            if before != claim and before not in self.forgotten:
                raise Broken("P1", f"key {key} of {tenant} names {before} and {claim}")

    def unkeyed(self, claim: str) -> None:
        """Forget the claim's key, because the database lost it. The claim may still be adopted from its worker, but without its
        key."""
        self.keys = {key: named for key, named in self.keys.items() if named != claim}
