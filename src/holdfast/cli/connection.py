"""What every command needs: the server, one run of the event loop, and messages for errors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from .completion import names_of

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.context import Context

T = TypeVar("T")

Format = Literal["table", "json"]
PoolName = Annotated[str, typer.Option(help="The pool.", autocompletion=names_of("pools"))]
TenantName = Annotated[
    str | None, typer.Option(help="The tenant; only for admins and operators.", autocompletion=names_of("tenants"))
]
Key = Annotated[
    str | None, typer.Option(help="Names the claim until 24 h after its end: the same request with it returns the same claim.")
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label", "-l", metavar="NAME=VALUE", help="A label by which `get claims -l` finds the claim; can be repeated."
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="A table for people, or the server's JSON.")]
TableOutput = Annotated[
    Literal["table", "wide", "json"],
    typer.Option("--output", "-o", help="A table that fits the terminal, a table with all columns, or the server's JSON."),
]

# A shorter secret is not searched for. It also occurs in ids and ordinary words, so replacing it would spoil them and show what
# the secret is. Error texts contain names and never values, so there is nothing to replace in ours.
SHORTEST_HIDDEN = 8  # characters

PATIENCE = 15.0  # seconds for which a request is repeated while no replica answers

_hidden: list[str] = []  # values that are never printed, also when the server's answer repeats them


@dataclass(frozen=True)
class ServerOptions:
    """The global options as the user gave them."""

    url: str | None = None
    token: str | None = None
    context: str | None = None
    data_dir: Path | None = None

    def resolve(self) -> Context:
        from holdfast.client.context import resolve

        if self.context is not None and self.data_dir is not None:
            raise CommandFailed("--context and --data-dir both name a server: give only one of them", 2)
        return resolve(self.url, self.token, context=self.context, data_dir=self.data_dir)


class CommandFailed(Exception):
    """A command failed; the message is one line, and `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def check_key(key: str | None) -> None:
    """Refuses an empty key. It is most likely an unset variable of a script, whose runs would then not be told apart."""
    if key == "":
        raise CommandFailed("--key: must not be empty; leave the option out if the claim needs no key", 2)


def not_empty(value: str | None) -> str | None:
    """Refuses an empty name, id or address. It is most likely an unset variable of a script."""
    if value == "":
        raise typer.BadParameter("it is empty; if it comes from a variable, the variable is not set")
    return value


def confirm(question: str) -> None:
    """Asks a person whether to go on. Fails if nobody can answer."""
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise CommandFailed("not done, because nobody answered; add --yes to go on without the question") from None


def check_durations(**given: str | None) -> None:
    """Refuses options that are not durations, all at once. The names are those of the options."""
    from holdfast.model.duration import seconds

    wrong = []
    for name, value in given.items():
        try:
            seconds(value or "0s")
        except ValueError as error:
            wrong.append(f"--{name}: {error}")
    if wrong:
        raise CommandFailed("; ".join(wrong), 2)


def labels_of(given: list[str] | None) -> dict[str, str] | None:
    """Returns the labels that a command was given. A name without a value is a label with an empty value."""
    labels: dict[str, str] = {}
    for text in given or ():
        name, _, value = text.partition("=")
        if labels.setdefault(name, value) != value:
            raise CommandFailed(f"--label {name}: is given twice, with different values", 2)
    return labels or None


def with_client(context: typer.Context, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Connects to the server, runs `call` with the client, and returns its result."""
    from holdfast.client import Client

    from .delay import notice_of_delay

    options: ServerOptions = context.obj
    found = options.resolve()
    hide(found.token)

    async def run() -> T:
        async with Client(found.url, found.token, patience=PATIENCE) as client:
            with notice_of_delay(client.transport):
                return await call(client)

    return asyncio.run(run())


def hide(*secrets: str) -> None:
    """Makes `print_message` replace these values with ***, unless they are too short."""
    _hidden.extend(secret for secret in secrets if len(secret) >= SHORTEST_HIDDEN)


def print_message(message: str) -> None:
    """Prints a line for the user to stderr, because stdout is for output that programs read."""
    from holdfast.model.shown import shown_lines  # imported here, because completion must start fast

    for secret in sorted(_hidden, key=len, reverse=True):
        message = message.replace(secret, "***")
    print(shown_lines(message), file=sys.stderr, flush=True)


def print_priority(reason: str | None) -> None:
    """Prints why a claim got a lower priority than it asked for, if it did."""
    if reason is not None:
        print_message(f"note: {reason}")


def print_error(error: Exception) -> int:
    """Prints the error as one line and returns the exit code. A request with several mistakes gets a line for each. An unexpected
    error is printed as a bug."""
    from holdfast.client.errors import HoldfastError, Refused

    if isinstance(error, CommandFailed):
        print_message(f"holdfast: {error}")
        return error.code
    if isinstance(error, Refused) and len(fields := error.problem.errors) > 1:
        print_message(f"holdfast: the server refused {len(fields)} fields:")
        for wrong in fields:
            print_message(f"  {wrong.field}: {wrong.reason}")
        return 1
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        print_message(f"holdfast: {error.filename}: {error.strerror}")
        return 1
    if isinstance(error, HoldfastError | OSError):
        print_message(f"holdfast: {error}")
        return 1
    print_message(f"holdfast: this is a bug: {type(error).__name__}: {error}")
    return 1
