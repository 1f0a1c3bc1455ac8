"""`delete`: deletes what the server keeps under a name."""

from typing import Annotated

import typer

from .completion import names_of
from .connection import CommandFailed, Output, confirm, not_empty, with_client
from .show import print_json

deletions = typer.Typer(
    no_args_is_help=True, help="Delete a tenant (admins). A pool is deleted with `holdfast drain`.", rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    app.add_typer(deletions, name="delete")


@deletions.command()
def tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tenant's name.", autocompletion=names_of("tenants"), callback=not_empty)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = "table",
) -> None:
    """Delete a tenant: its limits and its tokens. It is refused while the tenant has live or waiting claims.

    Example: holdfast delete tenant acme --yes
    """
    if not yes:
        confirm(f"Delete tenant {name!r} and all of its tokens?")
    with_client(context, lambda client: client.delete_tenant(name))
    if output == "json":
        print_json({"name": name, "deleted": True})
    else:
        typer.echo(f"tenant {name} deleted")


@deletions.command(hidden=True)
def pool(name: Annotated[str, typer.Argument(autocompletion=names_of("pools"))]) -> None:
    """Say how a pool is deleted.

    Example: holdfast drain linux --yes
    """
    raise CommandFailed(f"a pool is deleted with `holdfast drain {name}`: free workers end, busy ones finish first", 2)
