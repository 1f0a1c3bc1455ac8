"""`recover`: shows the workers that lost commits left undecided, or decides about one of them."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from holdfast.model.shown import shown

from .completion import names_of
from .connection import CommandFailed, TableOutput, not_empty, print_message, with_client
from .show import print_json, print_table
from .times import age


def register(app: typer.Typer) -> None:
    app.command()(recover)


def recover(
    context: typer.Context,
    worker: Annotated[
        str | None,
        typer.Argument(
            help="The worker to decide about; without it, the undecided workers are shown.",
            autocompletion=names_of("workers"),
            callback=not_empty,
        ),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="The row of the worker is right; the worker may be used again.")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="The worker retires; its claim, if it may have run, is lost.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="The reason, which is stored in the history.")] = None,
    output: TableOutput = "table",
) -> None:
    """Show unconfirmed workers after lost commits, or decide.

    A worker whose agent has not reported since then is neither given out nor ended until its agent reports, its pod
    ends, or you decide.

    Example: holdfast recover w-1a2b3c --give-up --reason "its machine was replaced"
    """
    if worker is None:
        if confirm or give_up or reason is not None:
            raise CommandFailed("--confirm, --give-up and --reason need the worker to decide about", 2)
        _show(context, output)
        return
    if confirm == give_up:
        raise CommandFailed("decide with either --confirm or --give-up; `holdfast recover` shows what each would do", 2)
    if not (reason or "").strip():
        raise CommandFailed("--reason is required: it is kept in the history", 2)
    body = {"decision": "confirm" if confirm else "give-up", "reason": reason}
    answer = with_client(context, lambda client: client.raw("POST", f"/v1/recovery/{quote(worker, safe='')}", body=body))
    if output == "json":
        print_json(answer)
    else:
        typer.echo(f"worker {worker} {'confirmed' if confirm else 'given up'}; it is {json.loads(answer)['state']}")


def _show(context: typer.Context, output: str) -> None:
    answer = with_client(context, lambda client: client.raw("GET", "/v1/recovery", params={"limit": 1000}))
    if output == "json":
        print_json(answer)
        return
    found: dict[str, Any] = json.loads(answer)
    if found["recovering"]:
        typer.echo(f"recovering for {age(found['since'])}: {shown(found['reason'])}; it ends by itself once pods were compared")
    else:
        typer.echo("no recovery is under way")
    if found["items"]:
        print_table("unconfirmed", found["items"], wide=output == "wide")
        if found["next"]:
            print_message("there are more; decide about these first")
    else:
        typer.echo("every worker is confirmed")
