"""`manifests`: everything that an installation on Kubernetes needs, as YAML for `kubectl apply -f -`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .connection import Failed

if TYPE_CHECKING:
    from holdfast.install import Values

POSTGRES = "postgres:17"


def register(app: typer.Typer) -> None:
    app.command()(manifests)


def manifests(
    namespace: Annotated[str, typer.Option(help="Where Holdfast and its workers live. It must exist.")] = "holdfast",
    install: Annotated[str, typer.Option(help="The installation's name: several can share a namespace.")] = "holdfast",
    image: Annotated[str | None, typer.Option(help="Holdfast's image, where your cluster finds it.")] = None,
    pull_secret: Annotated[list[str] | None, typer.Option(help="For the replicas' image; may be given again.")] = None,
    dsn_secret: Annotated[str | None, typer.Option(help="A Secret that holds a Postgres DSN under the key `dsn`.")] = None,
    pooled: Annotated[bool, typer.Option("--pooled", help="The DSN leads through PgBouncer in transaction mode.")] = False,
    replicas: Annotated[int, typer.Option(min=1, max=16, help="How many replicas.")] = 2,
    crd: Annotated[bool, typer.Option(help="The WorkerPool CRD, which all installations of a cluster share.")] = True,
    priority_classes: Annotated[bool, typer.Option(help="The PriorityClasses, which they share as well.")] = True,
    preemption: Annotated[
        Literal["Never", "PreemptLowerPriority"], typer.Option(help="Whether workers may push out pods of lower priority.")
    ] = "Never",
    secrets: Annotated[bool, typer.Option(help="Make keys and an admin's token. The second time: --no-secrets.")] = True,
    metrics: Annotated[bool, typer.Option("--metrics", help="For the Prometheus operator: scraping and alerts.")] = False,
    metrics_secret: Annotated[
        str | None, typer.Option(help="A Secret with a token to scrape with, under the key `token`; else the admin's is used.")
    ] = None,
    try_postgres: Annotated[
        bool, typer.Option("--try-postgres", help="A Postgres that forgets everything with its pod. Only to try things out.")
    ] = False,
    postgres_image: Annotated[str, typer.Option(help="With --try-postgres: its image.")] = POSTGRES,
) -> None:
    """Print the objects of an installation on Kubernetes. They hold secrets: pipe them, or keep them where those belong.

    Example: holdfast manifests --namespace holdfast --image IMAGE --dsn-secret postgres | kubectl apply -f -
    To try it: holdfast manifests --image IMAGE --try-postgres | kubectl apply -f -
    """
    import msgspec

    from holdfast.install import Secrets, Values, objects
    from holdfast.install.values import Wrong

    values = Values(
        namespace=namespace,
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
    except Wrong as wrong:
        raise Failed(str(wrong)) from None


def _text(values: "Values", found: list[dict[str, Any]]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Without anchors: whoever reads it wants to see what stands where."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = f"# Holdfast's installation {values.install!r} in the namespace {values.namespace!r}.\n"
    if values.secrets is not None:
        head += "# Its Secrets were made just now. They are immutable: print with --no-secrets from the second time on.\n"
    if values.try_postgres is not None:
        head += "# Its Postgres keeps nothing: with its pod goes everything. Only to try things out.\n"
    return head + "".join("---\n" + yaml.dump(each, Dumper=Plain, sort_keys=False, width=120) for each in found)
