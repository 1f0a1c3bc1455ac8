"""Ask the API server whose token an agent shows: a pod of our namespace, by its name and UID, or nobody's."""

import msgspec

from ..ports.cluster import ClusterUnavailable, Identity
from . import names
from .api import Api, ApiRefused

LONGEST = 16_384  # characters; what is longer is no token
POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"


class User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] = {}


class ReviewStatus(msgspec.Struct, frozen=True):
    """A failure is `authenticated` absent; an error may or may not be said."""

    authenticated: bool = False
    user: User = User()
    audiences: list[str] = []


class Review(msgspec.Struct, frozen=True):
    status: ReviewStatus = ReviewStatus()


class Reviews:
    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def review(self, token: str) -> Identity | None:
        """Who it belongs to. Its pod must still be looked at: a token outlives its pod by some seconds."""
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
        said = msgspec.json.decode(content, type=Review).status
        extra = said.user.extra
        name, uid = extra.get(POD_NAME, []), extra.get(POD_UID, [])
        ours = said.user.username.startswith(f"system:serviceaccount:{self._namespace}:")
        if not said.authenticated or names.AUDIENCE not in said.audiences or not ours or len(name) != 1 or len(uid) != 1:
            return None
        return Identity(name[0], uid[0])
