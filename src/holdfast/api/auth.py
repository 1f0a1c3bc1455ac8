"""Who calls: bearer tokens with roles, and the short signed tokens of agents."""

import base64
import hashlib
import hmac
import time
from typing import Literal

import msgspec

from ..ports.store import Access
from .problems import Problem

Role = Literal["admin", "operator", "tenant"]
CACHE_SECONDS = 5.0  # a revoked token is refused after at most this long
CACHE_SIZE = 10_000
AGENT_TOKEN_SECONDS = 3600


class Caller(msgspec.Struct, frozen=True):
    id: str
    role: Role
    tenant: str | None

    @property
    def trusted(self) -> bool:
        return self.role != "tenant"

    def sees(self, tenant: str) -> bool:
        return self.trusted or tenant == self.tenant


class Agent(msgspec.Struct, frozen=True):
    worker: str
    uid: str


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Auth:
    def __init__(self, access: Access, key: bytes) -> None:
        self._access = access
        self._key = key
        self._known: dict[str, tuple[float, Caller | None]] = {}

    async def caller(self, header: str | None) -> Caller:
        hashed = hash_token(bearer(header))
        now = time.monotonic()
        until, caller = self._known.get(hashed, (0.0, None))
        if until < now:
            found = await self._access.token(hashed)
            caller = Caller(found[0], found[1], found[2]) if found else None  # type: ignore[arg-type]
            if len(self._known) >= CACHE_SIZE:
                self._known.clear()
            self._known[hashed] = (now + CACHE_SECONDS, caller)
        if caller is None:
            raise Problem(
                401, "unauthenticated", "the token is not known here, or has expired", headers=_CHALLENGE
            )
        return caller

    def sign_agent(self, agent: Agent) -> str:
        """A short token of our own: the cluster's is reviewed once, not on every poll of ten thousand agents."""
        body = _b64(msgspec.json.encode([agent.worker, agent.uid, int(time.time()) + AGENT_TOKEN_SECONDS]))
        return f"hfa_{body}.{self._mac(body)}"

    def agent(self, header: str | None) -> Agent:
        token = bearer(header)
        body, _, mac = token.removeprefix("hfa_").partition(".")
        if not token.startswith("hfa_") or not hmac.compare_digest(self._mac(body), mac):
            raise Problem(401, "unauthenticated", "not an agent's token: register first", headers=_CHALLENGE)
        worker, uid, expires = msgspec.json.decode(_unb64(body), type=tuple[str, str, int])
        if expires < time.time():
            raise Problem(401, "expired", "the agent's token has expired: register again", headers=_CHALLENGE)
        return Agent(worker, uid)

    def credential(self, claim: str, fence: int) -> str:
        """A claim's credential for its worker: derived, so that nothing stored can leak it; each fence has its own."""
        return "hfc_" + self._mac(f"credential.{claim}.{fence}")

    def _mac(self, text: str) -> str:
        return _b64(hmac.new(self._key, text.encode(), hashlib.sha256).digest())


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def bearer(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Problem(401, "unauthenticated", "send `Authorization: Bearer <token>`", headers=_CHALLENGE)
    return token.strip()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
