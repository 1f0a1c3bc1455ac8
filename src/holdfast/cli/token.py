"""`token`: creates, lists and revokes the tokens that the server accepts."""

from typing import Annotated, Any, Literal

import typer

from .completion import names_of
from .connection import Output, TableOutput, not_empty, with_client
from .show import print_json, print_table

tokens = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens (admins).", rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    app.add_typer(tokens, name="token")


@tokens.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for.", callback=not_empty)],
    role: Annotated[
        Literal["admin", "operator", "tenant", "metrics"], typer.Option(help="What it may do. metrics: only read /metrics.")
    ],
    tenant: Annotated[str | None, typer.Option(help="The tenant; required for the role tenant.")] = None,
    expires_in: Annotated[str | None, typer.Option(help="When it expires, such as 720h; never by default.")] = None,
    output: Output = "table",
) -> None:
    """Create a token and print it. It cannot be shown again later.

    Example: holdfast token create ci --role tenant --tenant acme --expires-in 720h
    """
    fields: dict[str, Any] = {"name": name, "role": role, "tenant": tenant, "expiresIn": expires_in}
    body = {field: value for field, value in fields.items() if value is not None}
    answer = with_client(context, lambda client: client.raw("POST", "/v1/tokens", body=body))
    if output == "json":
        print_json(answer)
    else:
        import json

        made = json.loads(answer)
        typer.echo(made["token"])
        if made.get("warning"):
            typer.echo(f"warning: {made['warning']}", err=True)  # not on stdout, which scripts store as the token


@tokens.command("list")
def list_(context: typer.Context, output: TableOutput = "table") -> None:
    """List tokens without their values.

    Example: holdfast token list
    """
    answer = with_client(context, lambda client: client.raw("GET", "/v1/tokens"))
    if output == "json":
        print_json(answer)
    else:
        import json

        print_table("tokens", json.loads(answer)["items"], wide=output == "wide")


@tokens.command()
def revoke(
    context: typer.Context,
    token: Annotated[str, typer.Argument(help="The token's id.", autocompletion=names_of("tokens"), callback=not_empty)],
    cancel: Annotated[bool, typer.Option("--cancel", help="Also end the claims that were made with it.")] = False,
    output: Output = "table",
) -> None:
    """Revoke a token. Requests that wait with it get no worker. Other claims go on without --cancel.

    Example: holdfast token revoke t-1a2b3c --cancel
    """
    cancelled = with_client(context, lambda client: client.revoke_token(token, cancel=cancel))
    if output == "json":
        print_json({"id": token, "revoked": True} | ({"cancelled": cancelled} if cancel else {}))
    else:
        typer.echo(f"token {token} revoked" + (f", claims cancelled: {len(cancelled)}" if cancel else ""))
