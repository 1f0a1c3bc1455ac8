"""`brake`: shows the brake, releases it, and sets its limits."""

import json
from typing import Annotated

import typer

from .completion import names_of
from .connection import CommandFailed, Output, with_client
from .describe import described
from .operate import Reason
from .show import print_json

brakes = typer.Typer(
    help="The brake, which limits how much may be ended in ten minutes.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
LIMITS = {"workers": "workers", "claims": "claims", "share": "share", "tenant_share": "tenantShare"}  # as answered, as sent


def register(app: typer.Typer) -> None:
    app.add_typer(brakes, name="brake")


@brakes.callback()
def brake(context: typer.Context, output: Output = "table") -> None:
    """Show the brake, set its limits, or release it after finding out why it tripped.

    Example: holdfast brake release --reason "the rollout was meant"
    """
    if context.invoked_subcommand is None:
        show(context, output)


@brakes.command()
def show(context: typer.Context, output: Output = "table") -> None:
    """Show which brakes are tripped, why, and their limits.

    Example: holdfast brake show
    """
    _print(with_client(context, lambda client: client.raw("GET", "/v1/brake")), output)


@brakes.command("set")
def set_(
    context: typer.Context,
    workers: Annotated[int | None, typer.Option(min=0, help="Workers that may be ended in ten minutes.")] = None,
    claims: Annotated[int | None, typer.Option(min=0, help="Claims that may be ended in ten minutes.")] = None,
    share: Annotated[
        float | None, typer.Option(min=0, max=1, help="The share of what is alive that may be ended, if that is more.")
    ] = None,
    tenant_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="The share of these endings that one tenant may use.")
    ] = None,
    output: Output = "table",
) -> None:
    """Set the brake's limits (admins). What is not given stays as it is.

    Example: holdfast brake set --workers 100 --claims 50
    """
    values = {"workers": workers, "claims": claims, "share": share, "tenant_share": tenant_share}
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        raise CommandFailed("give --workers, --claims, --share, --tenant-share or several of them", 2)
    found = json.loads(with_client(context, lambda client: client.raw("GET", "/v1/brake")))
    body = {sent: given.get(name, found[name]) for name, sent in LIMITS.items()}
    _print(with_client(context, lambda client: client.raw("PUT", "/v1/brake", body=body)), output)


@brakes.command()
def release(
    context: typer.Context,
    reason: Reason,
    tenant: Annotated[
        str | None, typer.Option(help="Release the brake of this tenant only.", autocompletion=names_of("tenants"))
    ] = None,
    output: Output = "table",
) -> None:
    """Release the brake of the fleet, or that of a tenant.

    Example: holdfast brake release --reason "the rollout was meant"
    """
    body = {"reason": reason} | ({} if tenant is None else {"tenant": tenant})
    answer = with_client(context, lambda client: client.raw("POST", "/v1/brake/release", body=body))
    if output == "json":
        print_json(answer)
    else:
        typer.echo("brake released" if tenant is None else f"brake of tenant {tenant} released")


def _print(answer: bytes, output: str) -> None:
    if output == "json":
        print_json(answer)
        return
    found = json.loads(answer)
    tenants = found.pop("tenants", [])
    found.pop("limit", None)  # an older name of `workers`
    typer.echo("\n".join(described(found)))
    for each in tenants:
        typer.echo("\n" + "\n".join(described(each)))
