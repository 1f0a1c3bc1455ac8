"""The security settings of every pod of an installation. The Pod Security Standard `restricted` accepts them."""

from .values import Json

CONTAINER_SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def pod_security(user: int) -> Json:
    """Returns the settings of a pod whose containers run as this UID. The UID is also the group of its volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
