"""The options and the request body of a new claim."""

from typing import Any, Literal, TypedDict

import msgspec


class ClaimOptions(TypedDict, total=False):
    """All options of a claim except its pool, as keyword arguments. Durations are strings such as `60s`."""

    tenant: str | None
    key: str | None
    command: list[str] | None
    payload: Any
    env: dict[str, str] | None
    secrets: dict[str, str] | None
    priority: int | None
    deadline: str | None
    lease: str | None
    max_duration: str | None
    park_ttl: str | None
    retry: Literal["lost"] | None
    labels: dict[str, str] | None
    stdin: bool | None


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The body of `POST /v1/claims`. Fields that are None are left out, so that the pool's and the tenant's defaults apply."""

    pool: str
    tenant: str | None = None
    key: str | None = None
    command: list[str] | None = None
    payload: Any = None
    env: dict[str, str] | None = None
    secrets: dict[str, str] | None = None
    priority: int | None = None
    wait: str | None = None
    deadline: str | None = None
    lease: str | None = None
    max_duration: str | None = None
    park_ttl: str | None = msgspec.field(default=None, name="parkTTL")
    retry: str | None = None
    labels: dict[str, str] | None = None
    stdin: bool | None = None

    def __repr__(self) -> str:  # without secrets and env, which would end up in logs
        return f"ClaimRequest(pool={self.pool!r}, tenant={self.tenant!r}, key={self.key!r})"
