"""`login`: stores a server and a token, after the server accepted the token."""

import asyncio
from typing import Annotated
from urllib.parse import urlsplit

import typer

from .connection import CommandFailed, hide


def register(app: typer.Typer) -> None:
    app.command()(login)


def login(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(help="The server's URL; several replicas separated by commas.")] = None,
    token: Annotated[str | None, typer.Option(help="The token; without it, the command prompts for it.")] = None,
    name: Annotated[str | None, typer.Option(help="The context's name; the server's host by default.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the contexts; * marks the one in use.")] = False,
    use: Annotated[str | None, typer.Option(metavar="NAME", help="Use this context from now on.")] = None,
) -> None:
    """Store a server and a token as a context, and use it from now on.

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
    token = token or context.obj.token or typer.prompt("Token", hide_input=True, err=True)
    assert token is not None
    hide(token)
    identity = asyncio.run(_identity(url, token))
    name = name or urlsplit(url.split(",")[0]).netloc
    contexts.write_contexts(path, known.with_context(name, contexts.Context(url=url, token=token)))
    typer.echo(f"logged in to {url} as {identity}; context {name!r} is now in use")


async def _identity(url: str, token: str) -> str:
    from holdfast.client import Client

    async with Client(url, token, patience=5.0) as client:
        me = await client.whoami()
    named = f"{me.role} {me.name!r}" if me.name else me.role
    return f"{named} of tenant {me.tenant!r}" if me.tenant else named
