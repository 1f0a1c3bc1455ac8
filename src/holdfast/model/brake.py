"""The brake's limits: how much Holdfast may end by its own decision in ten minutes (P7)."""

from typing import Annotated

import msgspec

Endings = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class BrakeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    workers: Endings = 50
    claims: Endings = 50
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.25  # of what is alive, if that is more
    tenant_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5  # of the above; so one tenant cannot trip the fleet's brake
