"""`login`, `logout`, `whoami`: store a server and a token, remove them, and show which ones are used."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from .completion import context_names
from .connection import CommandFailed, Output, hide, not_empty, with_client
from .show import print_json

if TYPE_CHECKING:
    from holdfast.client.answers import Identity


def register(app: typer.Typer) -> None:
    for command in (login, logout, whoami):
        app.command()(command)


def login(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Argument(help="The server's URL; several replicas separated by commas.", callback=not_empty)
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="The token; without it, the command asks for it, or reads it from stdin.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The context's name; the server's host by default.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the contexts; * marks the one in use.")] = False,
    use: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this context from now on.", autocompletion=context_names)
    ] = None,
) -> None:
    """Store a server and a token, and use them from now on.

    Example: holdfast login https://holdfast.example.com --name prod
    """
    from holdfast.client import context as contexts

    path = contexts.contexts_file()
    known = contexts.read_contexts(path)
    if show:
        for each, stored in sorted(known.contexts.items()):
            typer.echo(f"{'*' if each == known.current else ' '} {each}  {stored.url}")
        return
    if use is not None:
        contexts.write_contexts(path, known.using(use))
        typer.echo(f"using {use} ({known.named(use).url})")
        return
    if url is None:
        raise CommandFailed("give the server's URL, or --list, or --use NAME", 2)
    token = token or context.obj.token or _ask_token()
    hide(token)
    identity = asyncio.run(_identity(url, token))
    name = name or urlsplit(url.split(",")[0]).netloc
    contexts.write_contexts(path, known.with_context(name, contexts.Context(url=url, token=token)))
    typer.echo(f"logged in to {url} as {identity}; context {name!r} is now in use")


def _ask_token() -> str:
    """Returns the token that a person types, or that is piped in."""
    if sys.stdin.isatty():
        return str(typer.prompt("Token", hide_input=True, err=True))
    if not (token := sys.stdin.readline().strip()):
        raise CommandFailed("no token: type it in a terminal, pipe it in (holdfast login URL < FILE), or give --token", 2)
    return token


async def _identity(url: str, token: str) -> str:
    from holdfast.client import Client

    async with Client(url, token, patience=5.0) as client:
        return _described(await client.whoami())


def _described(me: "Identity") -> str:
    named = f"{me.role} {me.name!r}" if me.name else me.role
    return f"{named} of tenant {me.tenant!r}" if me.tenant else named


def logout(
    name: Annotated[
        str | None,
        typer.Argument(help="The context's name; the one in use by default.", autocompletion=context_names, callback=not_empty),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all contexts.")] = False,
) -> None:
    """Remove a stored server and its token from this machine. The token itself stays valid until it is revoked.

    Example: holdfast logout prod
    """
    from holdfast.client import context as contexts

    if everything and name is not None:
        raise CommandFailed("give a context's name or --all, not both", 2)
    path = contexts.contexts_file()
    known = contexts.read_contexts(path)
    if not everything and name is None and known.current is None:
        raise CommandFailed("no context is in use; `holdfast login --list` shows the stored ones")
    names = sorted(known.contexts) if everything else [name or known.current or ""]
    for each in names:
        url = known.named(each).url
        known = known.without(each)
        contexts.write_contexts(path, known)
        typer.echo(f"logged out of {url}; context {each!r} is removed. The token stays valid: `holdfast token revoke` ends it")


def whoami(context: typer.Context, output: Output = "table") -> None:
    """Show the server in use, and your role and tenant there.

    Example: holdfast whoami
    """
    url = context.obj.resolve().url
    me = with_client(context, lambda client: client.whoami())
    if output == "json":
        print_json({"url": url, "role": me.role, "name": me.name, "tenant": me.tenant})
    else:
        typer.echo(f"{_described(me)} at {url}")
