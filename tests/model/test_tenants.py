"""The store returns a tenant's limits as they were written, so that what is shown can be applied again."""

from typing import Any

import msgspec
import pytest

from holdfast.model.duration import seconds
from holdfast.model.tenant import TenantSpec
from holdfast.postgres.store import PostgresStore


@pytest.mark.parametrize("ttl", ["0s", "250ms", "45s", "1h30m", "1500ms", "1h1m1s"])
async def test_a_tenants_ttl_is_kept_exactly_and_can_be_applied_again(store: PostgresStore, ttl: str) -> None:
    written = msgspec.convert({"weight": 5, "maxClaims": 3, "maxPriority": 2, "parkTTL": ttl}, TenantSpec)
    shown = (await store.pools.put_tenant("acme", written)).spec
    again = msgspec.json.decode(msgspec.json.encode(shown), type=TenantSpec)
    assert again.park_ttl is not None
    assert seconds(again.park_ttl) == seconds(ttl)
    assert (again.weight, again.max_claims, again.max_priority) == (5, 3, 2)


@pytest.mark.parametrize(
    "written", [{"weight": 0}, {"weight": 1001}, {"maxClaims": -1}, {"maxPriority": 10}, {"parkTTL": "1m\n"}, {"share": 1}]
)
def test_limits_beyond_reason_are_refused(written: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(written, TenantSpec)
