"""Verify an agent's token through the API server: find the pod of our namespace, by name and UID, to which it belongs.

Strangers can send any number of tokens, so refusals are remembered and reviews have a rate (decision 0024).
"""

import base64
import hashlib
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from ..ports.cluster import AgentIdentity, ClusterUnavailable
from . import names
from .api import Api, ApiRefused

log = structlog.get_logger()
K = TypeVar("K")
V = TypeVar("V")

LONGEST = 16_384  # characters; a longer string is not a token
REFUSED_SECONDS = 5.0  # short, because an API server may not yet know the pod of a genuine token
REMEMBERED = 10_000  # refused tokens, and pods with a bucket
POD_BURST, POD_RATE = 3, 0.5  # reviews at once and per second, for tokens that name a pod which we know
OTHERS_BURST, OTHERS_RATE = 20, 5.0  # the same for all other tokens together
LOG_SECONDS = 10.0
POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"


class User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] = {}


class ReviewStatus(msgspec.Struct, frozen=True):
    """On failure, `authenticated` is absent. An error text is optional."""

    authenticated: bool = False
    user: User = User()
    audiences: list[str] = []


class Review(msgspec.Struct, frozen=True):
    status: ReviewStatus = ReviewStatus()


class NamedPod(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""


class Binding(msgspec.Struct, frozen=True):
    pod: NamedPod = NamedPod()


class TokenClaims(msgspec.Struct, frozen=True):
    binding: Binding = msgspec.field(name="kubernetes.io", default=Binding())


class Bucket:
    """Allows `burst` reviews at once, and `rate` per second afterwards."""

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._left, self._burst, self._rate, self._at = burst, burst, rate, now

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Reviews:
    """`knows` returns whether a pod of this name and UID is ours, without a call."""

    def __init__(
        self, api: Api, namespace: str, knows: Callable[[str, str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._namespace, self._knows, self._clock = api, namespace, knows, clock
        self._refused: dict[bytes, float] = {}  # the hash of a token, and until when it is refused
        self._pods: dict[str, Bucket] = {}  # by UID
        self._others = Bucket(OTHERS_BURST, OTHERS_RATE, clock())
        self._logged_at = float("-inf")

    async def review(self, token: str) -> AgentIdentity | None:
        """Returns the pod to which the token belongs, or None. The caller must still check that the pod exists, because a token
        stays valid for some seconds after its pod is deleted."""
        if not token or len(token) > LONGEST or not token.isascii() or not token.isprintable():
            return None
        hashed = hashlib.sha256(token.encode()).digest()
        if self._refused.get(hashed, 0.0) > self._clock():
            return None
        self._pace(token)
        identity = await self._ask(token)
        if identity is None:
            self._refused.pop(hashed, None)  # so that it becomes the newest
            _keep(self._refused, hashed, self._clock() + REFUSED_SECONDS)
        return identity

    def _pace(self, token: str) -> None:
        """Raises ClusterUnavailable if too many tokens of this kind came. What the token names only chooses the bucket."""
        now, pod = self._clock(), named_pod(token)
        bucket = self._others
        if pod is not None and self._knows(pod.name, pod.uid):
            bucket = self._pods.get(pod.uid) or _keep(self._pods, pod.uid, Bucket(POD_BURST, POD_RATE, now))
        if bucket.take(now):
            return
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.warning("too many tokens to review", pod=pod.name if bucket is not self._others and pod else None)
        raise ClusterUnavailable("too many tokens were sent for a review")

    async def _ask(self, token: str) -> AgentIdentity | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [names.AUDIENCE]},
        }
        try:
            content = await self._api.ask("/apis/authentication.k8s.io/v1/tokenreviews", body)
        except ApiRefused as refused:
            raise ClusterUnavailable(f"the API server refused to review a token: {refused.status.reason}") from refused
        status = msgspec.json.decode(content, type=Review).status
        extra = status.user.extra
        name, uid = extra.get(POD_NAME, []), extra.get(POD_UID, [])
        ours = status.user.username.startswith(f"system:serviceaccount:{self._namespace}:")
        if not status.authenticated or names.AUDIENCE not in status.audiences or not ours or len(name) != 1 or len(uid) != 1:
            return None
        return AgentIdentity(name[0], uid[0])


def named_pod(token: str) -> NamedPod | None:
    """Returns the pod that a token claims to belong to, if it can be read. The signature is not checked."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        content = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(content, type=TokenClaims).binding.pod
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _keep(entries: dict[K, V], key: K, value: V) -> V:
    """Adds an entry, and removes the oldest one if there are too many."""
    if len(entries) >= REMEMBERED:
        del entries[next(iter(entries))]
    entries[key] = value
    return value
