"""The claim that every limit stores, as a replica would store it for a small request."""

from holdfast.ports.store import NewClaim


def request(id_: str, tenant: str = "default", lease: float | None = None) -> NewClaim:
    return NewClaim(
        id=id_,
        tenant=tenant,
        key=None,
        hash="0" * 32,
        request={"command": [], "payload": None, "env": {}},
        priority=0,
        lease=lease,
        max_duration=21_600.0,
        deadline=3_600.0,
        park_ttl=None,
        retry=None,
        secrets=None,
    )
