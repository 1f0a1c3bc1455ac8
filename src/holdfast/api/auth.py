"""Authentication: bearer tokens with roles for callers, and short-lived signed tokens for agents."""

import base64
import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from ..model.event import Actor
from ..ports.cluster import AgentIdentity
from ..ports.store import StoreUnavailable, Tokens
from ..proof import Signer
from .problems import Problem

Role = Literal["admin", "operator", "tenant", "metrics"]
CACHE_SECONDS = 5.0  # a revoked token is refused after at most this long
CACHE_SIZE = 10_000
AGENT_TOKEN_SECONDS = 3600
STREAMS = 32  # of events, per token and replica, because each of them reads the store twice a second
FOLLOWERS = 256  # of outputs, per token and replica; each of them reads the store every 3 s


class Clock(Protocol):
    """The module `time`, or a simulation's clock."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...


class Caller(msgspec.Struct, frozen=True):
    id: str
    role: Role
    tenant: str | None
    name: str = ""

    @property
    def actor(self) -> Actor:
        """Returns who causes what this caller requests, for the history."""
        assert self.role != "metrics", "this role changes nothing"
        return Actor(self.id, self.name, self.role)

    @property
    def trusted(self) -> bool:
        return self.role in ("admin", "operator")

    def sees(self, tenant: str) -> bool:
        return self.trusted or tenant == self.tenant


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Auth:
    def __init__(self, tokens: Tokens, key: bytes, clock: Clock = time) -> None:
        self._tokens = tokens
        self._key = key
        self._wall = clock.time
        self._clock = clock.monotonic
        self._known: dict[str, tuple[float, Caller | None]] = {}
        self._forgotten = 0  # how often `forget_tenants` was called
        self._streams: Counter[tuple[str, int]] = Counter()
        self.signer = Signer(key)

    async def caller(self, header: str | None) -> Caller:
        hashed = hash_token(bearer(header))
        now = self._clock()
        until, caller = self._known.get(hashed, (0.0, None))
        if until < now:
            forgotten = self._forgotten
            found = await self._tokens.by_hash(hashed)
            caller = Caller(*found) if found else None  # type: ignore[arg-type]
            if len(self._known) >= CACHE_SIZE:
                # Keep only valid tokens, so that guessed tokens cannot push them out of the cache.
                self._known = {key: kept for key, kept in self._known.items() if kept[1] and kept[0] >= now}
            if forgotten == self._forgotten:  # else the token may have been read before it was deleted
                self._known[hashed] = (now + CACHE_SECONDS, caller)
        if caller is None:
            raise Problem(401, "unauthenticated", "the token is not known here, or has expired", headers=CHALLENGE)
        return caller

    def forget_tenants(self, tenants: Collection[str]) -> None:
        """Makes the tokens of deleted tenants stop working now, and not only when the cache lets go of them."""
        self._forgotten += 1
        self._known = {key: kept for key, kept in self._known.items() if not kept[1] or kept[1].tenant not in tenants}

    def forget_tokens(self, tokens: Collection[str]) -> None:
        """Makes revoked tokens stop working now, and not only when the cache lets go of them."""
        self._forgotten += 1
        self._known = {key: kept for key, kept in self._known.items() if not kept[1] or kept[1].id not in tokens}

    async def anyone(self, header: str | None) -> Caller | None:
        """Accepts any valid token, also an agent's, for which it returns None. /healthz and similar routes must answer while the store is unavailable, so
        during that time a token that is still in the cache is accepted, even if its entry has expired."""
        token = bearer(header)
        if token.startswith("hfa_"):
            self.agent(header)
            return None
        try:
            return await self.caller(header)
        except StoreUnavailable:
            if (cached := self._known.get(hash_token(token), (0.0, None))[1]) is None:
                raise
            return cached

    def may_stream(self, caller: Caller, most: int = STREAMS) -> None:
        """Refuses a stream if the token has `most` of this kind open here. Each kind has a limit of its own, which names it."""
        if self._streams[caller.id, most] >= most:
            raise Problem(429, "too-many", f"this token has {most} streams open here; close one", headers={"Retry-After": "5"})

    @contextmanager
    def streaming(self, caller: Caller, most: int = STREAMS) -> Iterator[None]:
        self._streams[caller.id, most] += 1
        try:
            yield
        finally:
            self._streams[caller.id, most] -= 1
            self._streams += Counter()  # drops entries that are zero

    async def still(self, header: str | None) -> bool:
        """Returns whether a stream or a request that has waited may go on. Its token may have been revoked or may have expired
        since it began."""
        try:
            await self.caller(header)
        except Problem:
            return False
        return True

    def sign_agent(self, agent: AgentIdentity) -> str:
        """Returns a short-lived token that we verify ourselves. The cluster's token is verified once per registration, because
        the API server could not review it on every poll of ten thousand agents."""
        body = _b64(msgspec.json.encode([agent.worker, agent.uid, int(self._wall()) + AGENT_TOKEN_SECONDS]))
        return f"hfa_{body}.{self._mac(body)}"

    def agent(self, header: str | None) -> AgentIdentity:
        token = bearer(header)
        body, _, mac = token.removeprefix("hfa_").partition(".")
        if not token.startswith("hfa_") or not hmac.compare_digest(self._mac(body).encode(), mac.encode()):
            raise Problem(401, "unauthenticated", "not an agent's token: register first", headers=CHALLENGE)
        worker, uid, expires = msgspec.json.decode(_unb64(body), type=tuple[str, str, int])
        if expires < self._wall():
            raise Problem(401, "expired", "the agent's token has expired: register again", headers=CHALLENGE)
        return AgentIdentity(worker, uid)

    def credential(self, claim: str, fence: int) -> str:
        """Returns the credential for a claim's worker. It is derived per fence and never stored, so that a leaked database does
        not contain it."""
        return "hfc_" + self._mac(f"credential.{claim}.{fence}")

    def _mac(self, text: str) -> str:
        return _b64(hmac.new(self._key, text.encode(), hashlib.sha256).digest())


CHALLENGE = {"WWW-Authenticate": "Bearer"}


def bearer(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Problem(401, "unauthenticated", "send `Authorization: Bearer <token>`", headers=CHALLENGE)
    return token.strip()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
