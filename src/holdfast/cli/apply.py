"""`apply`: creates and changes the server's pools and tenants according to a file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .connection import CommandFailed, Output, with_client
from .show import print_json

if TYPE_CHECKING:
    from holdfast.client import Client

    from .manifest import Manifest


def register(app: typer.Typer) -> None:
    app.command()(apply)


def apply(
    context: typer.Context,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="A YAML file; - is standard input.")],
    output: Output = "table",
) -> None:
    """Create or change the pools and tenants of a file. If any part of the file is wrong, nothing is changed.

    Example: holdfast apply -f pools.yaml
    """
    from . import manifest

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        found = manifest.read(text, "stdin" if file == "-" else file)
    except manifest.WrongManifest as wrong:
        raise CommandFailed(str(wrong)) from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{file}: is not UTF-8 text") from None

    async def call(client: "Client") -> None:
        answers = []
        for each in found:
            verdict, answer = await _put(client, each)
            answers.append(answer)
            if output != "json":
                typer.echo(f"{each.kind} {each.name} {verdict}")
        if output == "json":
            print_json({"items": answers})

    with_client(context, call)


async def _put(client: "Client", wanted: "Manifest") -> tuple[str, Any]:
    """Sends one manifest, and returns what changed and the server's answer. The change is found by comparing two answers of the
    server, because both have the defaults filled in."""
    import json
    from urllib.parse import quote

    from holdfast.client import NotFound

    path = f"/v1/{'pools' if wanted.kind == 'WorkerPool' else 'tenants'}/{quote(wanted.name, safe='')}"
    try:
        before = json.loads(await client.raw("GET", path))
    except NotFound:
        before = None
    after = json.loads(await client.raw("PUT", path, body=wanted.spec))
    if before is None or before.get("state") in ("draining", "gone"):
        return "created", after
    return ("unchanged" if _settings(before) == _settings(after) else "configured"), after


def _settings(answer: dict[str, Any]) -> Any:
    """Returns a pool's spec, or a tenant's fields without its counts."""
    if "spec" in answer:
        return answer["spec"]
    return {name: value for name, value in answer.items() if name not in ("live", "waiting", "updated_at")}
