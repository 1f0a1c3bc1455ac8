"""Builds a replica from its store, cluster, claim path, duties and routes. This is the only module that knows all of them."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
from starlette.applications import Starlette

from . import __version__
from .api.app import application
from .api.auth import Auth, Clock, Role, hash_token
from .api.context import Context
from .api.door import Door
from .api.encryption import Cipher
from .api.revocation import Revocation
from .claimpath.path import ClaimPath
from .claimpath.signals import Signals
from .duties.duty import Ports
from .ids import Ids
from .local.addresses import http_url
from .local.cluster import LocalCluster
from .local.layout import Layout
from .metrics import Metrics
from .ports.cluster import Cluster, ClusterUnavailable
from .ports.recovery import Mark
from .ports.store import Store, StoreUnavailable, WrongInstallation
from .postgres.database import Database
from .postgres.migrate import migrate
from .postgres.store import PostgresStore
from .proof import Signer
from .running.apply import Apply
from .running.replica import Replica, ReplicaInfo

log = structlog.get_logger()


@dataclass(frozen=True)
class InKubernetes:
    """Settings for workers that are pods of a Kubernetes namespace instead of processes of this machine."""

    namespace: str
    install: str
    agent_image: str
    agent_url: str | None = None  # the replicas' address for agents; without it, each replica's own address
    kubeconfig: Path | None = None
    context: str | None = None
    priority_class: str | None = None
    replicas_namespace: str | None = None  # where the replicas run, if they are pods
    own_secrets: tuple[str, ...] = ()  # Secrets of the installation, which no pool may use


@dataclass(frozen=True)
class Settings:
    dsn: str = field(repr=False)
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 7070
    pooled: bool = False
    probe_port: int | None = None  # serves health to kubelets without a token
    advertise: str | None = None  # the address at which others reach this replica, if it differs from `host`
    key_file: Path | None = None  # shared by all replicas; without it, the key below the data directory is used
    token_file: Path | None = None  # holds an admin token that every replica accepts
    metrics_token_file: Path | None = None  # holds Prometheus' token; the file may be missing
    kubernetes: InKubernetes | None = None

    @property
    def url(self) -> str:
        return http_url(self.advertise or self.host, self.port)


@dataclass(frozen=True)
class Wired:
    """A replica that is built but not started."""

    app: Starlette
    door: Door
    context: Context
    replica: Replica
    store: Store
    cluster: Cluster


def local_cluster(layout: Layout) -> LocalCluster:
    return LocalCluster(
        root=layout.workers,
        output_root=layout.output,
        highwater=layout.highwater,
        servers_file=layout.sockets,
        install=layout.install.read_text().strip(),
        key=layout.key.read_bytes(),
    )


async def kubernetes_cluster(options: InKubernetes, url: str, key: bytes) -> Cluster:
    """Returns the cluster of this namespace. Raises NoCluster if no API server is configured."""
    from .kubernetes.access import find_access  # imported here, because a fleet on one machine does not need it
    from .kubernetes.api import Api
    from .kubernetes.cluster import KubernetesCluster
    from .kubernetes.template import Setup

    access = await asyncio.to_thread(find_access, options.kubeconfig, options.context)
    servers = tuple((options.agent_url or url).split(","))
    apart = options.replicas_namespace if options.replicas_namespace != options.namespace else None
    setup = Setup(
        options.install,
        options.agent_image,
        servers,
        options.priority_class,
        Signer(key).public_key,
        replicas_namespace=apart,
        own_secrets=options.own_secrets,
    )
    return KubernetesCluster(Api(access), options.namespace, setup)


def wire(
    store: Store,
    cluster: Cluster,
    *,
    key: bytes,
    url: str,
    ids: Ids | None = None,
    duties_store: Store | None = None,
    clock: Clock = time,
) -> Wired:
    """Builds everything above the ports. A simulation calls this with its own store, cluster, ids and clock. `duties_store` is
    the same store with separate connections, so that a flood of requests cannot block the duties (P6)."""
    duties_store = duties_store or store
    ids = ids or Ids()
    metrics, signals = Metrics(), Signals()
    claim_path = ClaimPath(store, cluster, signals, metrics)
    apply = Apply(duties_store, cluster, claim_path, ids, metrics)
    info = ReplicaInfo(os.getpid(), socket.gethostname(), url, __version__)
    replica = Replica(ids.new("r", 6), Ports(duties_store, cluster), apply, signals, metrics, info)
    auth = Auth(store.tokens, key, clock)
    signals.tenants.subscribe(auth.forget_tenants)
    revocation = Revocation(store, claim_path)
    signals.tokens.subscribe(auth.forget_tokens)  # first, so that the ended request is refused
    signals.tokens.subscribe(revocation.revoked)
    context = Context(
        store=store,
        cluster=cluster,
        claim_path=claim_path,
        signals=signals,
        replica=replica,
        metrics=metrics,
        auth=auth,
        cipher=Cipher(key),
        ids=ids,
        version=__version__,
        install=cluster.install,
        revocation=revocation,
    )
    app = application(context)
    app.state.door = door = Door(metrics)  # each connection of a server finds it there (api/server.py)
    return Wired(app, door, context, replica, store, cluster)


async def admit(store: Store, token: str, role: Role = "admin", name: str = "operator of this machine") -> None:
    """Stores a token of the installation itself, unless it is stored already."""
    await store.tokens.make(Ids().new("t"), hash_token(token), name, role, None, None)


async def check_namespace(store: Store, cluster: Cluster, namespace: str) -> None:
    """Raises WrongInstallation if the workers of this database are in another namespace. Otherwise a changed setting would make
    every worker look deleted, and end their claims. It waits until store and cluster answer."""
    while True:
        try:
            if await cluster.remembered() is not None or await cluster.pods():
                return
            lost = sum(row.worker.pod_uid is not None for row in await store.workers.rows(None))
            break
        except (StoreUnavailable, ClusterUnavailable) as reason:
            log.warning("waiting to compare the namespace with the database", reason=str(reason))
            await asyncio.sleep(1)
    if lost:
        mark = f"holdfast-{cluster.install}-mark"
        raise WrongInstallation(
            f"the database has {lost} workers, and the namespace {namespace!r} has neither one of them nor the ConfigMap {mark};"
            f" if that namespace was deleted with all of them, create it with install={cluster.install}, mark=0 and epoch=0"
        )


def log_delay(reason: StoreUnavailable) -> None:
    log.warning("waiting for Postgres", reason=str(reason))


async def connect(
    settings: Settings,
    install: str,
    *,
    size: int = 8,
    mark: Mark | None = None,
    pids: set[int] | None = None,
    on_delay: Callable[[StoreUnavailable], None] = log_delay,
) -> PostgresStore:
    """Returns the migrated store. Until Postgres is available, this tries again and calls `on_delay` with the reason. Raises
    WrongDsn if trying again is of no use."""
    pause = 0.2
    while True:
        try:
            await migrate(settings.dsn, install)
            db = await Database.connect(settings.dsn, size=size, pooled=settings.pooled, mark=mark, pids=pids)
            db.heal = partial(migrate, settings.dsn, install)
            return PostgresStore(db)
        except StoreUnavailable as error:
            on_delay(error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
