"""Builds a replica from its store, cluster, claim path, duties and routes. This is the only module that knows all of them."""

import asyncio
import contextlib
import os
import secrets
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
from .api.auth import Auth, Clock, hash_token
from .api.context import Context
from .api.door import Door
from .claimpath.path import ClaimPath
from .claimpath.signals import Signals
from .duties.duty import Ports
from .ids import Ids
from .local.cluster import LocalCluster
from .metrics import Metrics
from .ports.cluster import Cluster
from .ports.recovery import Mark
from .ports.store import Store, StoreUnavailable
from .postgres.database import Database
from .postgres.migrate import migrate
from .postgres.store import PostgresStore
from .running.apply import Apply
from .running.replica import Replica, ReplicaInfo

log = structlog.get_logger()


@dataclass(frozen=True)
class Layout:
    """The paths of the files and folders below a data directory."""

    root: Path

    @property
    def key(self) -> Path:
        return self.root / "key"

    @property
    def install(self) -> Path:
        return self.root / "install"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def servers(self) -> Path:
        return self.root / "servers"

    @property
    def workers(self) -> Path:
        return self.root / "workers"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def highwater(self) -> Path:
        return self.root / "highwater.json"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    def ensure(self) -> None:
        """Creates the private files that a replica needs before it starts. Existing files are not changed."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        _keep(self.key, secrets.token_bytes(32))
        _keep(self.install, f"i-{secrets.token_hex(6)}\n".encode())
        _keep(self.token, f"{Ids().token()}\n".encode())

    def announce(self, urls: list[str], *, only: bool = False) -> None:
        """Writes the replicas' URLs for agents. An agent reads the file again whenever a replica does not answer. With `only`,
        the URLs that the file holds so far are dropped."""
        known = [] if only or not self.servers.exists() else self.servers.read_text().split()
        draft = self.servers.with_name(f".servers.{os.getpid()}")
        draft.write_text("\n".join(dict.fromkeys([*urls, *known])) + "\n")
        draft.replace(self.servers)


def _keep(path: Path, content: bytes) -> None:
    """Writes a private file if it does not exist yet. The file appears complete, so that a reader never sees half of it."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()


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
    kubernetes: InKubernetes | None = None

    @property
    def url(self) -> str:
        return f"http://{self.advertise or self.host}:{self.port}"


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
        servers_file=layout.servers,
        install=layout.install.read_text().strip(),
        key=layout.key.read_bytes(),
    )


async def kubernetes_cluster(options: InKubernetes, url: str) -> Cluster:
    """Returns the cluster of this namespace. Raises NoCluster if no API server is configured."""
    from .kubernetes.access import find_access  # imported here, because a fleet on one machine does not need it
    from .kubernetes.api import Api
    from .kubernetes.cluster import KubernetesCluster
    from .kubernetes.template import Setup

    access = await asyncio.to_thread(find_access, options.kubeconfig, options.context)
    servers = tuple((options.agent_url or url).split(","))
    setup = Setup(options.install, options.agent_image, servers, options.priority_class)
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
    context = Context(
        store=store,
        cluster=cluster,
        claim_path=claim_path,
        signals=signals,
        replica=replica,
        metrics=metrics,
        auth=auth,
        ids=ids,
        version=__version__,
        install=cluster.install,
    )
    app = application(context)
    app.state.door = door = Door(metrics)  # each connection of a server finds it there (api/server.py)
    return Wired(app, door, context, replica, store, cluster)


async def admit(store: Store, token: str) -> None:
    """Stores the operator's token as an admin token, unless it is stored already."""
    await store.tokens.make(Ids().new("t"), hash_token(token), "operator of this machine", "admin", None, None)


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
