"""The one request that every part of the benchmark makes, as the replica would store it."""

from holdfast.ports.store import NewClaim


def request(id_: str) -> NewClaim:
    return NewClaim(
        id=id_,
        tenant="default",
        key=None,
        hash="0" * 32,
        request={"command": [], "payload": None, "env": {}},
        priority=0,
        lease=None,
        max_duration=21_600.0,
        deadline=3_600.0,
        park_ttl=None,
        retry=None,
        secrets=None,
    )
