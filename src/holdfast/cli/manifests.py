"""`manifests`: prints all objects that an installation on Kubernetes needs, as YAML for `kubectl apply -f -`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .connection import CommandFailed

if TYPE_CHECKING:
    from holdfast.install import Values

POSTGRES = "postgres:17"


def register(app: typer.Typer) -> None:
    app.command()(manifests)


def manifests(
    namespace: Annotated[str, typer.Option(help="The namespace of Holdfast's replicas. It must exist.")] = "holdfast",
    workers_namespace: Annotated[
        str | None, typer.Option(help="The namespace of the workers and pools; NAMESPACE-workers by default.")
    ] = None,
    make_namespace: Annotated[
        bool, typer.Option(help="Print the workers' namespace too, if it is not the replicas' own (default).", show_default=False)
    ] = True,
    pod_security: Annotated[
        Literal["privileged", "baseline", "restricted"], typer.Option(help="What the workers' namespace lets pods do.")
    ] = "baseline",
    network_policy: Annotated[bool, typer.Option(help="Print a policy that limits who can reach the replicas.")] = True,
    client_namespace: Annotated[
        list[str] | None, typer.Option(help="A further namespace whose pods may reach the API; can be repeated.")
    ] = None,
    install: Annotated[str, typer.Option(help="The installation's name: several can share a namespace.")] = "holdfast",
    image: Annotated[str | None, typer.Option(help="Holdfast's image, at a place from which your cluster can pull it.")] = None,
    pull_secret: Annotated[list[str] | None, typer.Option(help="A pull secret for the replicas' image; can be repeated.")] = None,
    dsn_secret: Annotated[str | None, typer.Option(help="A Secret that holds a Postgres DSN under the key `dsn`.")] = None,
    pooled: Annotated[bool, typer.Option("--pooled", help="The DSN connects through PgBouncer in transaction mode.")] = False,
    replicas: Annotated[int, typer.Option(min=1, max=16, help="How many replicas.")] = 2,
    crd: Annotated[bool, typer.Option(help="Print the WorkerPool CRD, which all installations of a cluster share.")] = True,
    priority_classes: Annotated[bool, typer.Option(help="Print the PriorityClasses, which they share as well.")] = True,
    preemption: Annotated[
        Literal["Never", "PreemptLowerPriority"], typer.Option(help="Whether workers may preempt pods of lower priority.")
    ] = "Never",
    secrets: Annotated[
        bool, typer.Option(help="Print new keys and a new admin token. Use --no-secrets from the second time on.")
    ] = True,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print scraping and alerts for the Prometheus operator.")] = False,
    metrics_secret: Annotated[
        str | None,
        typer.Option(help="A Secret that holds a token of the role metrics under the key `token`; a new one by default."),
    ] = None,
    try_postgres: Annotated[
        bool, typer.Option("--try-postgres", help="Add a Postgres that loses all data with its pod. Only to try things out.")
    ] = False,
    postgres_image: Annotated[str, typer.Option(help="With --try-postgres: its image.")] = POSTGRES,
) -> None:
    """Print the objects of an installation on Kubernetes. They contain secrets, so pipe them or store them safely.

    Example: holdfast manifests --namespace holdfast --image IMAGE --dsn-secret postgres | kubectl apply -f -

    To try it: holdfast manifests --image IMAGE --try-postgres | kubectl apply -f -
    """
    import msgspec

    from holdfast.install import Secrets, Values, objects
    from holdfast.install.values import WrongValues

    values = Values(
        namespace=namespace,
        workers_namespace=workers_namespace,
        make_namespace=make_namespace,
        pod_security=pod_security,
        network_policy=network_policy,
        clients=tuple(client_namespace or ()),
        install=install,
        pull_secrets=tuple(pull_secret or ()),
        dsn_secret=dsn_secret,
        pooled=pooled,
        replicas=replicas,
        crd=crd,
        priority_classes=priority_classes,
        preemption=preemption,
        secrets=Secrets.fresh() if secrets else None,
        metrics=metrics,
        metrics_secret=metrics_secret,
        try_postgres=postgres_image if try_postgres else None,
    )
    if image is not None:
        values = msgspec.structs.replace(values, image=image)
    try:
        typer.echo(_text(values, objects(values)), nl=False)
    except WrongValues as wrong:
        raise CommandFailed(str(wrong)) from None


def _text(values: "Values", found: list[dict[str, Any]]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes no anchors, so that a reader sees each value where it is used."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = f"# Holdfast's installation {values.install!r} in the namespace {values.namespace!r}, workers in {values.workers!r}.\n"
    if values.secrets is not None:
        head += "# Its Secrets are new and immutable: use --no-secrets from the second time on.\n"
    if values.try_postgres is not None:
        head += "# Its Postgres loses all data with its pod. Only to try things out.\n"
    return head + "".join("---\n" + yaml.dump(each, Dumper=Plain, sort_keys=False, width=120) for each in found)
