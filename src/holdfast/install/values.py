"""What people choose about an installation. Everything else follows from it."""

import re
import secrets
from typing import Literal

import msgspec

from .. import __version__

# 40: a StatefulSet's name and a hash must fit into a label of its pods.
INSTALL = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", re.ASCII)
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)
IMAGE = re.compile(r"\S+", re.ASCII)
TAKEN = ("default", "kubernetes")  # the namespace's own ServiceAccount, and the API server's Service


class Secrets(msgspec.Struct, frozen=True):
    """What nobody may guess. Made once: an installation that gets other ones loses its agents."""

    key: bytes  # signs agents' tokens, derives credentials
    token: str  # an admin's
    password: str  # of the throw-away Postgres

    @classmethod
    def fresh(cls) -> "Secrets":
        return cls(secrets.token_bytes(32), f"hf_{secrets.token_urlsafe(32)}", secrets.token_hex(16))

    def __repr__(self) -> str:
        return "Secrets(…)"


class Values(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    install: str = "holdfast"
    image: str = f"holdfast:{__version__}"
    pull_secrets: tuple[str, ...] = ()
    replicas: int = 2
    dsn_secret: str | None = None  # holds the DSN under `dsn`
    pooled: bool = False  # the DSN leads through PgBouncer in transaction mode
    try_postgres: str | None = None  # an image: a Postgres that forgets everything with its pod
    crd: bool = True
    priority_classes: bool = True
    preemption: Literal["Never", "PreemptLowerPriority"] = "Never"
    metrics: bool = False
    metrics_secret: str | None = None  # holds a token under `token`; else the admin's is used
    secrets: Secrets | None = None  # None: the Secrets are there already, or somebody else makes them

    @property
    def keys_secret(self) -> str:
        return f"{self.install}-keys"

    @property
    def postgres(self) -> str:
        return f"{self.install}-postgres"

    @property
    def labels(self) -> dict[str, str]:
        """Which pods are replicas of this installation: network policies of workers select by these (kubernetes/policies.py)."""
        return {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": self.install}


class Wrong(Exception):
    """These values make no installation: why, for whoever chose them."""


def check(values: Values) -> None:
    """Raises Wrong. Options are named as `holdfast manifests` has them."""
    if not INSTALL.fullmatch(values.install):
        raise Wrong(f"--install {values.install!r}: must be a-z, 0-9 and '-', at most 40 characters")
    if values.install in TAKEN:
        raise Wrong(f"--install {values.install!r}: Kubernetes has an object of this name in a namespace already")
    if not LABEL.fullmatch(values.namespace):
        raise Wrong(f"--namespace {values.namespace!r}: must be a-z, 0-9 and '-', at most 63 characters")
    if not 1 <= values.replicas <= 16:
        raise Wrong(f"--replicas {values.replicas}: must be 1 to 16")
    for option, image in {"--image": values.image, "--postgres-image": values.try_postgres}.items():
        if image is not None and not IMAGE.fullmatch(image):
            raise Wrong(f"{option} {image!r}: is no image")
    secret_names = {"--dsn-secret": values.dsn_secret, "--metrics-secret": values.metrics_secret}
    for option, name in [*secret_names.items(), *(("--pull-secret", name) for name in values.pull_secrets)]:
        if name is not None and not NAME.fullmatch(name):
            raise Wrong(f"{option} {name!r}: is no name of a Secret")
    if (values.dsn_secret is None) == (values.try_postgres is None):
        raise Wrong("replicas need one Postgres: --dsn-secret for yours, or --try-postgres for one that forgets everything")
