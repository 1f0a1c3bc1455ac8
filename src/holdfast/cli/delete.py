"""`delete`: deletes what the server keeps under a name."""

from typing import Annotated

import typer

from .completion import names_of
from .connection import Output, with_client
from .show import print_json

deletions = typer.Typer(
    no_args_is_help=True, help="Delete a tenant (admins). A pool is deleted with `holdfast drain`.", rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    app.add_typer(deletions, name="delete")


@deletions.command()
def tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tenant's name.", autocompletion=names_of("tenants"))],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = "table",
) -> None:
    """Delete a tenant: its limits and its tokens. It is refused while the tenant has live or waiting claims.

    Example: holdfast delete tenant acme --yes
    """
    if not yes:
        typer.confirm(f"Delete tenant {name!r} and all of its tokens?", abort=True, err=True)
    with_client(context, lambda client: client.delete_tenant(name))
    if output == "json":
        print_json({"name": name, "deleted": True})
    else:
        typer.echo(f"tenant {name} deleted")
