"""Stores several pools and tenants in one statement: all of them or none."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..model.duration import seconds
from ..model.event import Actor
from ..model.pool import revision_of
from ..model.tenant import TenantSpec
from ..ports.store import PoolChange
from .database import Database, actor_json

APPLY = "SELECT * FROM @fn.apply($1::jsonb, $2::jsonb, $3::jsonb)"


async def apply(
    db: Database, pools: Sequence[PoolChange], tenants: Mapping[str, TenantSpec], actor: Actor | None
) -> dict[tuple[str, str], Literal["created", "changed", "same"]] | None:
    if not pools and not tenants:
        return {}
    wanted = [_pool(change) for change in pools], [{"name": name, **limits_of(spec)} for name, spec in tenants.items()]
    rows = await db.rows(APPLY, *(msgspec.json.encode(each).decode() for each in wanted), actor_json(actor))
    return {(row["o_kind"], row["o_name"]): row["o_what"] for row in rows} or None


def _pool(change: PoolChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "name": change.name,
        "spec": change.spec,
        "revision": revision_of(change.spec),
        "seen_id": change.seen.id if change.seen else None,
        "seen_generation": change.seen.generation if change.seen else None,
    }


def limits_of(spec: TenantSpec) -> dict[str, int | float | None]:
    """Returns a tenant's limits as columns, in the order of the parameters of `put_tenant`."""
    return {
        "weight": spec.weight,
        "max_claims": spec.max_claims,
        "max_priority": spec.max_priority,
        "park_ttl": None if spec.park_ttl is None else seconds(spec.park_ttl),
        "max_waiting": spec.max_waiting,
        "max_output_bytes": spec.max_output_bytes,
    }
