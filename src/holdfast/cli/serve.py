"""The commands that run a part of Holdfast instead of calling a server: up, serve, agent, migrate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.ports.cluster import NoCluster

from .connection import CommandFailed
from .init import EXAMPLE

if TYPE_CHECKING:
    from holdfast.local.layout import Layout
    from holdfast.up import Plan

    from .manifest import Manifest

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        help="The directory for all files of this fleet. Also HOLDFAST_DATA_DIR.",
        envvar="HOLDFAST_DATA_DIR",
        show_envvar=False,
    ),
]
DSN_OPTION = "the DSN (--dsn or HOLDFAST_DSN)"
Dsn = Annotated[
    str | None,
    typer.Option(
        help="The DSN of your own Postgres (15 or newer). Also HOLDFAST_DSN, which other users cannot see.",
        envvar="HOLDFAST_DSN",
        show_envvar=False,
    ),
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port; further replicas use the next ports.")]
Pooled = Annotated[bool, typer.Option("--pooled", help="The DSN connects through PgBouncer in transaction mode.")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine although there is no TLS.")]


def _check_dsn(dsn: str) -> None:
    """Refuses a malformed DSN before anything starts, because a replica would take its Postgres for unavailable and wait."""
    from holdfast.postgres.dsn import WrongDsn, server_of

    try:
        server_of(dsn)
    except WrongDsn as wrong:
        raise CommandFailed(f"{DSN_OPTION}: {wrong}", 2) from None


def _check_host(host: str, insecure: bool) -> None:
    """Refuses an address that other machines can reach, because tokens and the secrets of claims would cross the network in plain
    text."""
    from holdfast.local.addresses import is_loopback

    if not insecure and not is_loopback(host):
        raise CommandFailed(
            f"--host {host}: other machines could reach it, and without TLS they could read tokens and secrets; listen on"
            " 127.0.0.1 behind a proxy with TLS, or add --insecure",
            2,
        )


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(serve)
    app.command()(agent)
    app.command()(migrate)


def up(
    data_dir: DataDir = Path(".holdfast"),
    port: Port = 7070,
    replicas: Annotated[int, typer.Option(min=1, max=16, help="How many replicas.")] = 1,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Pools and tenants to apply.")] = None,
    dsn: Dsn = None,
    host: Host = "127.0.0.1",
    insecure: Insecure = False,
    stop_workers: Annotated[bool, typer.Option(help="When stopping, end free workers and wait for busy ones.")] = False,
    pooled: Pooled = False,
) -> None:
    """Run a whole fleet on this machine.

    It starts Postgres, replicas and warm workers. Ctrl-C stops it; busy workers go on.

    Example: holdfast up -f pools.yaml
    """
    import asyncio

    from holdfast.local.layout import AlreadyUp
    from holdfast.local.listening import PortTaken
    from holdfast.ports.store import WrongInstallation
    from holdfast.postgres.dsn import WrongDsn
    from holdfast.postgres.embedded import PostgresFailed
    from holdfast.unix_socket import NotPrivate
    from holdfast.up import Plan
    from holdfast.up import up as run_up

    from . import manifest

    _check_host(host, insecure)
    if pooled and dsn is None:
        raise CommandFailed("--pooled works only with your own Postgres: it needs --dsn or HOLDFAST_DSN")
    if port + replicas - 1 > 65535:
        raise CommandFailed(f"--port {port} is too high for {replicas} replicas: the last port would be above 65535", 2)
    if dsn is not None:
        _check_dsn(dsn)
    found = []
    if file is not None:
        try:
            found = manifest.read(file.read_text(), str(file))  # before the start, so that a wrong file starts nothing
        except (manifest.WrongManifest, OSError) as wrong:
            raise CommandFailed(str(wrong)) from None

    async def then(plan: "Plan", layout: "Layout", listening: list[str]) -> None:
        await _apply_and_print_next_steps(plan, layout, listening, found)

    try:
        asyncio.run(run_up(Plan(data_dir, port, replicas, dsn, stop_workers, host, pooled, insecure), then))
    except (AlreadyUp, NotPrivate, PortTaken, WrongInstallation, PostgresFailed) as wrong:
        raise CommandFailed(str(wrong)) from None
    except WrongDsn as wrong:
        raise CommandFailed(f"{DSN_OPTION}: {wrong}") from None


async def _apply_and_print_next_steps(plan: "Plan", layout: "Layout", listening: list[str], found: "list[Manifest]") -> None:
    """Waits for one of the replicas that listen, applies the file, and prints the next steps."""
    import asyncio

    from holdfast.client import Client, Unavailable, Unreachable
    from holdfast.up import print_line

    from .apply import send

    async with Client(listening, layout.token.read_text().strip()) as client:
        while True:
            try:
                await client.raw("GET", "/readyz")
                break
            except (Unreachable, Unavailable):
                await asyncio.sleep(0.2)
        if found:
            for each in (await send(client, found))["items"]:
                print_line(f"{each['kind']} {each['name']} {each['result']}")
        pools = {pool.name: str(pool.spec.get("mode")) async for pool in await client.list_pools() if pool.state == "live"}
    print_line(_next_steps(plan, layout, pools))


def _next_steps(plan: "Plan", layout: "Layout", pools: dict[str, str]) -> str:
    """Returns commands to try. They use the fleet's pools, given with their modes, and work as they are printed."""
    import shlex
    import shutil
    import sys

    here = Path(sys.argv[0])
    holdfast = (
        "holdfast" if shutil.which("holdfast") else str(here) if here.name == "holdfast" else f"{sys.executable} -m holdfast"
    )
    lines = [] if layout.root == Path.cwd() / ".holdfast" else [f"export HOLDFAST_DATA_DIR={shlex.quote(str(layout.root))}"]
    if not pools:
        if not Path(EXAMPLE).exists():
            lines.append(f"{holdfast} init                       # writes {EXAMPLE}, an example with comments")
        lines.append(f"{holdfast} apply -f {EXAMPLE}")
    lines.append(f"{holdfast} get pools")
    for name in [name for name, mode in pools.items() if mode == "job"][:1]:
        lines.append(f"{holdfast} run --pool {name} -- sh -c 'echo hello from $HOLDFAST_CLAIM'")
    for name in [name for name, mode in pools.items() if mode == "session"][:1]:
        lines.append(f"{holdfast} claim --pool {name} --hold")
    lines += [f"{holdfast} top", f"{holdfast} doctor"]
    tried = "\n".join(f"  {line}" for line in lines)
    ending = "Ctrl-C drains and stops it." if plan.stop_workers else "Ctrl-C stops it; workers go on."
    none = "" if pools else " It has no pools yet."
    return f"""
Holdfast is up on {", ".join(plan.urls)}. {ending}{none} Try in another terminal:

{tried}
"""


def _option(help: str, variable: str) -> Any:
    return typer.Option(help=f"{help} Also {variable}.", envvar=variable, show_envvar=False)


def serve(
    data_dir: DataDir = Path(".holdfast"),
    port: Port = 7070,
    host: Host = "127.0.0.1",
    insecure: Insecure = False,
    dsn: Dsn = None,
    pooled: Pooled = False,
    probe_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="A second port, which serves /healthz and /readyz to kubelets without a token."),
    ] = None,
    advertise: Annotated[str | None, _option("The address at which others reach this replica.", "HOLDFAST_ADVERTISE")] = None,
    key_file: Annotated[Path | None, _option("A file with the key that all replicas share.", "HOLDFAST_KEY_FILE")] = None,
    token_file: Annotated[
        Path | None, _option("A file with an admin token that replicas accept.", "HOLDFAST_ADMIN_TOKEN_FILE")
    ] = None,
    namespace: Annotated[
        str | None, _option("Workers are pods of this Kubernetes namespace, not local processes.", "HOLDFAST_NAMESPACE")
    ] = None,
    install: Annotated[str, _option("The installation's name: several can share a namespace.", "HOLDFAST_INSTALL")] = "holdfast",
    agent_image: Annotated[str, _option("Holdfast's own image, for agents.", "HOLDFAST_AGENT_IMAGE")] = "holdfast:latest",
    agent_url: Annotated[
        str | None, _option("The replicas' URL for agents; several separated by commas.", "HOLDFAST_AGENT_URL")
    ] = None,
    kubeconfig: Annotated[
        Path | None, _option("The kubeconfig to use outside a pod; in a pod, its service account is used.", "KUBECONFIG")
    ] = None,
    kube_context: Annotated[str | None, typer.Option(help="A context of the kubeconfig.")] = None,
    priority_class: Annotated[
        str | None, _option("The PriorityClass of workers whose pool names none.", "HOLDFAST_PRIORITY_CLASS")
    ] = None,
    replicas_namespace: Annotated[
        str | None, _option("The namespace of the replicas, if it is not the workers' own.", "HOLDFAST_REPLICAS_NAMESPACE")
    ] = None,
    own_secrets: Annotated[
        str, _option("Secrets that no pool may use, separated by commas, because they are ours.", "HOLDFAST_OWN_SECRETS")
    ] = "",
    metrics_token_file: Annotated[
        Path | None, _option("A file with a token that may read the metrics only.", "HOLDFAST_METRICS_TOKEN_FILE")
    ] = None,
) -> None:
    """Run one replica on an existing Postgres. `up` starts replicas with this command.

    Example: HOLDFAST_DSN=postgresql://… holdfast serve --data-dir /var/lib/holdfast

    On Kubernetes: HOLDFAST_DSN=postgresql://… holdfast serve --namespace workers
    """
    from holdfast.ports.store import WrongInstallation
    from holdfast.postgres.dsn import WrongDsn
    from holdfast.serve import run
    from holdfast.unix_socket import NotPrivate
    from holdfast.wiring import InKubernetes, Settings

    if dsn is None:
        raise CommandFailed("serve needs a Postgres: set HOLDFAST_DSN or --dsn (or use `holdfast up`)")
    _check_dsn(dsn)
    pods = None
    if namespace is None:
        _check_host(host, insecure)
    else:  # a pod must listen for other pods; network policies decide which
        pods = InKubernetes(
            namespace,
            install,
            agent_image,
            agent_url,
            kubeconfig,
            kube_context,
            priority_class,
            replicas_namespace,
            tuple(name.strip() for name in own_secrets.split(",") if name.strip()),
        )
    settings = Settings(
        dsn=dsn,
        data_dir=data_dir.absolute(),
        host=host,
        port=port,
        pooled=pooled,
        probe_port=probe_port,
        advertise=advertise,
        key_file=key_file,
        token_file=token_file,
        metrics_token_file=metrics_token_file,
        kubernetes=pods,
    )
    try:
        run(settings)
    except WrongInstallation as wrong:
        option = "the data directory" if pods is None else "the --install and --namespace"
        raise CommandFailed(f"{wrong}; use {option} that this database was made with") from None
    except (NoCluster, NotPrivate) as wrong:
        raise CommandFailed(str(wrong)) from None
    except WrongDsn as wrong:
        raise CommandFailed(f"{DSN_OPTION}: {wrong}") from None


def agent() -> None:
    """Run the agent of one worker. The backend starts it, with its settings in the environment."""
    from holdfast.agent.entry import main

    raise typer.Exit(main())


def migrate(dsn: Dsn = None, data_dir: DataDir = Path(".holdfast")) -> None:
    """Bring the schema up to date. Replicas also do this when they start; doing it at the same time is safe.

    Example: HOLDFAST_DSN=postgresql://… holdfast migrate
    """
    import asyncio

    from holdfast.local.layout import Layout
    from holdfast.ports.store import StoreUnavailable, WrongInstallation
    from holdfast.postgres.dsn import WrongDsn
    from holdfast.postgres.migrate import migrate as run

    if dsn is None:
        raise CommandFailed("migrate needs a Postgres: set HOLDFAST_DSN or --dsn")
    _check_dsn(dsn)
    layout = Layout(data_dir.absolute())
    install = layout.install.read_text().strip() if layout.install.exists() else None
    try:
        applied = asyncio.run(run(dsn, install))
    except WrongDsn as wrong:
        raise CommandFailed(f"{DSN_OPTION}: {wrong}") from None
    except (StoreUnavailable, WrongInstallation) as error:
        raise CommandFailed(f"nothing was migrated: {error}") from None
    typer.echo("applied: " + ", ".join(applied) if applied else "nothing to do")
