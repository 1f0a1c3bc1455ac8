"""A tenant's limits: its share, its caps, and its highest priority."""

from typing import Annotated

import msgspec

from .duration import Duration

TENANT_MUST = "fit a label value such as team-a: letters, digits, '-', '_' and '.', at most 63 characters"
TenantName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$(?!\n)",
        description="fits a label value",
        examples=["acme"],
        extra={"must": TENANT_MUST},
    ),
]


MAX_WAITING = 1000  # claims of one tenant in all queues together, unless its limits say otherwise
MAX_OUTPUT_BYTES = 1024**3  # of one tenant's ended claims, unless its limits say otherwise


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    max_claims: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    max_priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0  # otherwise every tenant could move to the front of the queue
    park_ttl: Duration | None = msgspec.field(default=None, name="parkTTL")
    max_waiting: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = MAX_WAITING
    max_output_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = MAX_OUTPUT_BYTES


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    spec: TenantSpec
    live: int = 0
    waiting: int = 0
