"""Commands for operators: scale, freeze, thaw and drain a pool, retire a worker, check the system."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from .completion import names_of
from .connection import CommandFailed, Output, TableOutput, confirm, not_empty, with_client
from .show import print_json, print_table

Reason = Annotated[str, typer.Option(help="The reason, which is stored in the history.")]
PoolName = Annotated[str, typer.Argument(help="The pool's name.", autocompletion=names_of("pools"), callback=not_empty)]


def register(app: typer.Typer) -> None:
    for command in (scale, freeze, thaw, retire, drain, doctor):
        app.command()(command)


def _post(context: typer.Context, path: str, body: dict[str, Any], output: str, done: str) -> None:
    answer = with_client(context, lambda client: client.raw("POST", path, body=body))
    if output == "json":
        print_json(answer)
    else:
        typer.echo(done)


def scale(
    context: typer.Context,
    pool: PoolName,
    warm: Annotated[int | None, typer.Option(min=0, help="Free workers to keep ready.")] = None,
    max: Annotated[int | None, typer.Option(min=0, help="All workers, busy ones included.")] = None,
    output: Output = "table",
) -> None:
    """Change how many workers a pool keeps. What is not given stays as it is.

    Example: holdfast scale linux --warm 5 --max 20
    """
    if warm is None and max is None:
        raise CommandFailed("give --warm, --max or both", 2)
    size = {field: count for field, count in (("warm", warm), ("max", max)) if count is not None}
    path = f"/v1/pools/{quote(pool, safe='')}/scale"
    answer = with_client(context, lambda client: client.raw("POST", path, body=size, safe=True))
    if output == "json":
        print_json(answer)
        return
    spec = json.loads(answer)["spec"]
    typer.echo(f"pool {pool} scaled: warm {spec['warm']}, max {spec['max']}")


def freeze(context: typer.Context, pool: PoolName, reason: Reason, output: Output = "table") -> None:
    """Freeze a pool: nothing in it is spawned or ended.

    Example: holdfast freeze linux --reason "looking at a stuck job"
    """
    path = f"/v1/pools/{quote(pool, safe='')}/freeze"
    _post(context, path, {"reason": reason}, output, f"pool {pool} frozen")


def thaw(context: typer.Context, pool: PoolName, output: Output = "table") -> None:
    """Thaw a frozen pool: its workers are spawned and ended again.

    Example: holdfast thaw linux
    """
    _post(context, f"/v1/pools/{quote(pool, safe='')}/thaw", {}, output, f"pool {pool} thawed")


def retire(
    context: typer.Context,
    worker: Annotated[str, typer.Argument(help="The worker's id.", autocompletion=names_of("workers"), callback=not_empty)],
    reason: Reason,
    output: Output = "table",
) -> None:
    """Retire a free worker. A held worker is refused.

    Example: holdfast retire w-1a2b3c --reason "its disk is slow"
    """
    path = f"/v1/workers/{quote(worker, safe='')}/retire"
    _post(context, path, {"reason": reason}, output, f"worker {worker} retiring")


def drain(
    context: typer.Context,
    pool: PoolName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = "table",
) -> None:
    """Delete a pool: free workers end, busy ones finish first.

    Example: holdfast drain linux --yes
    """
    if not yes:
        confirm(f"Drain and delete pool {pool!r}?")
    with_client(context, lambda client: client.delete_pool(pool))
    if output == "json":
        print_json({"name": pool, "state": "draining"})
    else:
        typer.echo(f"pool {pool} draining")


def doctor(context: typer.Context, output: TableOutput = "table") -> None:
    """Check that every promise can be kept. The exit code is 1 if a check fails.

    Example: holdfast doctor
    """
    answer = with_client(context, lambda client: client.raw("GET", "/v1/doctor"))
    found = json.loads(answer)
    if output == "json":
        print_json(answer)
    else:
        print_table("checks", found["checks"], wide=output == "wide")
    failed = [check["name"] for check in found["checks"] if not check["ok"]]
    if failed or not found["ok"]:
        raise CommandFailed(f"{len(failed)} of {len(found['checks'])} checks failed: {', '.join(failed)}")
