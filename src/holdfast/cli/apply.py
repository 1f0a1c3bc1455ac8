"""`apply` and `diff`: create and change the server's pools and tenants according to files, or show what would change."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.model.shown import shown, shown_lines

from .connection import CommandFailed, Output, print_error, with_client
from .show import print_json

if TYPE_CHECKING:
    from holdfast.client import Client, Refused

    from .manifest import Manifest

Files = Annotated[
    list[str],
    typer.Option(
        "--file", "-f", metavar="FILE", help="A YAML file, a folder of YAML files, or - for standard input. May be repeated."
    ),
]
TROUBLE = 2  # the exit code of `diff` that is not about a difference; the same as that of diff(1)
APPLY_SECONDS = 30.0  # in addition to the usual time; the cluster may check many pools one after the other


def register(app: typer.Typer) -> None:
    app.command()(apply)
    app.command()(diff)


def apply(
    context: typer.Context,
    file: Files,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the server check the files and show what would change; change nothing.")
    ] = False,
    output: Output = "table",
) -> None:
    """Create or change the pools and tenants of files. If any part of them is wrong, nothing is changed.

    Example: holdfast apply -f pools.yaml -f tenants/
    """
    from .manifest_files import read_all

    found = read_all(file)
    answer = with_client(context, lambda client: send(client, found, dry_run=dry_run))
    if output == "json":
        print_json(answer)
        return
    for each in answer["items"]:
        typer.echo(f"{each['kind']} {each['name']} {each['result']}" + (" (dry run)" if dry_run else ""))
        if dry_run and each["result"] == "configured":
            for line in changes(each["before"], each["after"]):
                typer.echo(shown(f"  {line}"))


def diff(context: typer.Context, file: Files) -> None:
    """Show what `apply` would change, as a diff per object. The exit code is 1 if there is a difference, 2 if something fails.

    Example: holdfast diff -f pools.yaml
    """
    from .manifest_files import read_all

    try:
        found = read_all(file)
        answer = with_client(context, lambda client: send(client, found, dry_run=True))
    except Exception as error:
        print_error(error)
        raise typer.Exit(TROUBLE) from None
    different = [(wanted, each) for wanted, each in zip(found, answer["items"], strict=True) if each["result"] != "unchanged"]
    for wanted, each in different:
        typer.echo(shown_lines(_difference(wanted, each["before"], each["after"])), nl=False)
    if different:
        raise typer.Exit(1)


async def send(client: "Client", found: "Sequence[Manifest]", *, dry_run: bool = False) -> dict[str, Any]:
    """Sends all manifests in one request and returns the server's answer. A refusal names the file, the line and the object."""
    from holdfast.client import Refused

    objects = [{"kind": each.kind, "name": each.name, "spec": each.spec} for each in found]
    body = {"objects": objects, "dryRun": dry_run}
    try:
        # It is safe to send it again, because the same objects change nothing the second time.
        answer = await client.raw("POST", "/v1/apply", body=body, safe=True, wait=APPLY_SECONDS)
    except Refused as refused:
        if lines := list(_located(refused, found)):
            raise CommandFailed("\n".join(lines)) from None
        raise
    decoded: dict[str, Any] = json.loads(answer)
    return decoded


def _located(refused: "Refused", found: "Sequence[Manifest]") -> Iterator[str]:
    """Yields one line per refused field with its file, line and object. Yields none if the refusal is not about an object."""
    for error in refused.problem.errors:
        if match := re.fullmatch(r"objects\[(\d+)\](?:\.(.*))?", error.field, re.DOTALL):
            wanted, path = found[int(match[1])], match[2] or "document"
            path = "metadata.name" if path == "name" else path
            yield f"{wanted.place.of(path)}: {wanted.kind} {wanted.name}: {path}: {error.reason}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields one line per field that differs, with its old and new value."""
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {json.dumps(old, ensure_ascii=False)} → {json.dumps(new, ensure_ascii=False)}"


def _difference(wanted: "Manifest", before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
    """Returns the unified diff of one object. Defaults are written out, so that a field that returns to its default is shown."""
    from .as_yaml import document

    old = [] if before is None else document(wanted.kind, wanted.name, before).splitlines(keepends=True)
    new = document(wanted.kind, wanted.name, after).splitlines(keepends=True)
    stored = "/dev/null" if before is None else f"{wanted.kind} {wanted.name} (stored)"
    return "".join(difflib.unified_diff(old, new, stored, f"{wanted.kind} {wanted.name} ({wanted.place.file})"))
