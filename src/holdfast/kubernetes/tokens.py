"""Verify an agent's token through the API server: find the pod of our namespace, by name and UID, to which it belongs."""

import msgspec

from ..ports.cluster import AgentIdentity, ClusterUnavailable
from . import names
from .api import Api, ApiRefused

LONGEST = 16_384  # characters; a longer string is not a token
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


class Reviews:
    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def review(self, token: str) -> AgentIdentity | None:
        """Returns the pod to which the token belongs, or None. The caller must still check that the pod exists, because a token
        stays valid for some seconds after its pod is deleted."""
        if not token or len(token) > LONGEST or not token.isascii() or not token.isprintable():
            return None
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
