"""Define and check the settings of an installation that people choose."""

import re
import secrets
from typing import Any, Literal

import msgspec

from .. import __version__

# At most 40 characters, because a StatefulSet's name and a hash must fit into a label of its pods.
INSTALL = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", re.ASCII)
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)
IMAGE = re.compile(r"\S+", re.ASCII)
Json = dict[str, Any]
TAKEN = ("default", "kubernetes")  # names of a namespace's own ServiceAccount and of the API server's Service


class Secrets(msgspec.Struct, frozen=True):
    """The secrets of an installation. They are created once, because with other secrets the installation loses its agents."""

    key: bytes  # signs agents' tokens, derives credentials
    token: str  # the admin's
    password: str  # of the throw-away Postgres
    metrics: str  # Prometheus' token, which may read the metrics only

    @classmethod
    def fresh(cls) -> "Secrets":
        token, metrics = (f"hf_{secrets.token_urlsafe(32)}" for _ in range(2))
        return cls(secrets.token_bytes(32), token, secrets.token_hex(16), metrics)

    def __repr__(self) -> str:
        return "Secrets(…)"


class Values(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str  # of the replicas
    workers_namespace: str | None = None  # of the workers; None: <namespace>-workers
    make_namespace: bool = True  # whether the workers' namespace is created with the installation
    pod_security: Literal["privileged", "baseline", "restricted"] = "baseline"  # the level that a created namespace enforces
    clients: tuple[str, ...] = ()  # further namespaces whose pods may reach the API
    network_policy: bool = True
    install: str = "holdfast"
    image: str = f"holdfast:{__version__}"
    pull_secrets: tuple[str, ...] = ()
    replicas: int = 2
    dsn_secret: str | None = None  # holds the DSN under `dsn`
    pooled: bool = False  # the DSN leads through PgBouncer in transaction mode
    try_postgres: str | None = None  # the image of a Postgres that loses all data when its pod ends
    crd: bool = True
    priority_classes: bool = True
    preemption: Literal["Never", "PreemptLowerPriority"] = "Never"
    metrics: bool = False
    metrics_secret: str | None = None  # holds a token under `token`; None: the installation has one for this purpose
    secrets: Secrets | None = None  # None: the Secrets exist already or are created elsewhere

    @property
    def keys_secret(self) -> str:
        return f"{self.install}-keys"

    @property
    def scrape_secret(self) -> str:
        return self.metrics_secret or f"{self.install}-metrics"

    @property
    def own_secrets(self) -> tuple[str, ...]:
        """Returns the Secrets that no pool may use, for the case that workers run in the replicas' namespace."""
        return self.keys_secret, self.dsn_secret or self.postgres, self.scrape_secret

    @property
    def workers(self) -> str:
        return self.workers_namespace or f"{self.namespace}-workers"

    @property
    def apart(self) -> bool:
        """Returns whether workers have a namespace of their own."""
        return self.workers != self.namespace

    @property
    def postgres(self) -> str:
        return f"{self.install}-postgres"

    @property
    def labels(self) -> dict[str, str]:
        """Returns the labels of the replicas' pods. The workers' network policies select them (kubernetes/policies.py)."""
        return {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": self.install}

    @property
    def meta(self) -> Json:
        """Returns the metadata of each object that belongs to this installation alone."""
        return {"name": self.install, "namespace": self.namespace, "labels": self.labels}


class WrongValues(Exception):
    """The values are invalid. The message states why."""


def check(values: Values) -> None:
    """Raises WrongValues if a value is invalid. The text names the option of `holdfast manifests`."""
    if not INSTALL.fullmatch(values.install):
        raise WrongValues(f"--install {values.install!r}: must be a-z, 0-9 and '-', at most 40 characters")
    if values.install in TAKEN:
        raise WrongValues(f"--install {values.install!r}: Kubernetes itself creates an object of this name; choose another")
    if not LABEL.fullmatch(values.namespace):
        raise WrongValues(f"--namespace {values.namespace!r}: must be a-z, 0-9 and '-', at most 63 characters")
    if not LABEL.fullmatch(values.workers):
        raise WrongValues(f"--workers-namespace {values.workers!r}: must be a-z, 0-9 and '-', at most 63 characters")
    for client in values.clients:
        if not LABEL.fullmatch(client):
            raise WrongValues(f"--client-namespace {client!r}: must be a-z, 0-9 and '-', at most 63 characters")
    if not 1 <= values.replicas <= 16:
        raise WrongValues(f"--replicas {values.replicas}: must be 1 to 16")
    for option, image in {"--image": values.image, "--postgres-image": values.try_postgres}.items():
        if image is not None and not IMAGE.fullmatch(image):
            raise WrongValues(f"{option} {image!r}: is not an image name")
    secret_names = {"--dsn-secret": values.dsn_secret, "--metrics-secret": values.metrics_secret}
    for option, name in [*secret_names.items(), *(("--pull-secret", name) for name in values.pull_secrets)]:
        if name is not None and not NAME.fullmatch(name):
            raise WrongValues(f"{option} {name!r}: is not a valid name of a Secret")
    if (values.dsn_secret is None) == (values.try_postgres is None):
        raise WrongValues("replicas need one Postgres: --dsn-secret for yours, or --try-postgres for one that keeps no data")
