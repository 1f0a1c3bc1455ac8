"""Define every name that we write to a Kubernetes object."""

import hashlib
import re

DOMAIN = "holdfast.dev"
INSTALL = f"{DOMAIN}/install"
POOL, POOL_ID = f"{DOMAIN}/pool", f"{DOMAIN}/pool-id"
WORKER, REVISION, EPOCH = f"{DOMAIN}/worker", f"{DOMAIN}/revision", f"{DOMAIN}/epoch"
KIND = f"{DOMAIN}/kind"  # job, session or plain: how the pod reports
BUSY, SEALED = f"{DOMAIN}/busy", f"{DOMAIN}/sealed"
OWNER, CLAIM, FENCE = f"{DOMAIN}/owner", f"{DOMAIN}/claim", f"{DOMAIN}/fence"
HEADROOM = f"{DOMAIN}/headroom"  # on placeholders, which are not workers
STAMPED_AT = f"{DOMAIN}/stamped-at"
FINALIZER = f"{DOMAIN}/record"  # keeps an ended pod until its end is recorded
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

STAGE, PULL, AGENT = "holdfast-stage", "holdfast-pull", "holdfast-agent"  # containers
SHARED_VOLUME, TOKEN_VOLUME = "holdfast-shared", "holdfast-token"
SHARED_PATH = "/run/holdfast"
JOB_PATH = f"{SHARED_PATH}/job"  # where the agent leaves a job to its container
TOKEN_PATH = "/var/run/secrets/holdfast"  # noqa: S105 - a folder
TERMINATION_PATH = "/run/holdfast-termination"
AUDIENCE = "holdfast"
AGENT_PORT = 7071  # where a session's agent listens for holders

DISRUPTION_TAINTS = ("karpenter.sh/disrupted", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler")

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def anchor_name(install: str, pool_id: str) -> str:
    return f"holdfast-{digest(install, pool_id)}"


def account_name(install: str, pool: str) -> str:
    return f"holdfast-{digest(install, pool)}-{pool}"[:63].rstrip("-")


def digest(*parts: str) -> str:
    """Returns a short hash of the parts, because names have a length limit."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
