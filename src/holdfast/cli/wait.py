"""`wait`: waits until a claim is active or has ended, and exits with a code that scripts can use."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from .claims import ClaimId
from .connection import CommandFailed, Output, print_message, with_client
from .exit_codes import NO_WORKER, RunsCommand, code_of
from .show import print_json

if TYPE_CHECKING:
    from holdfast.client import Claim, Client

TABLE = """\b
Exit codes:
  0      it is active (--for active), or ended as completed or released
  124    the time of --timeout is over, or the claim was refused or expired
  125    Holdfast failed: wrong usage, no connection; lost or cancelled claims
  130    interrupted with Ctrl-C
  other  the code of the claim's command, as with `run`"""


def register(app: typer.Typer) -> None:
    app.command(cls=RunsCommand, epilog=TABLE)(wait)


def wait(
    context: typer.Context,
    claim: ClaimId,
    state: Annotated[Literal["active", "ended"], typer.Option("--for", help="What to wait for.")] = "ended",
    timeout: Annotated[str | None, typer.Option(help="How long to wait, such as 10m; without a limit by default.")] = None,
    output: Output = "table",
) -> None:
    """Wait until a claim has ended or is active, and print it.

    Example: holdfast wait c-1a2b3c --for ended --timeout 10m
    """
    limit = None if timeout is None else _seconds(timeout)

    async def call(client: "Client") -> int:
        found = await client.get_claim(claim)
        known = [found]  # the last answer, also if the time runs out
        # The claim goes on while no server is reachable, so only --timeout limits the wait.
        client.transport.patience = float("inf")
        client.transport.on_delay = lambda error: print_message(f"waiting for the server: {error}")
        try:
            async with asyncio.timeout(limit):
                found = await client.until(found, state, news=known.append)
        except TimeoutError:
            last = known[-1]
            why = f": {last.reason}" if last.reason else ""
            raise CommandFailed(f"claim {claim} is still {last.state} after {timeout}{why}", NO_WORKER) from None
        if output == "json":
            print_json(await client.raw("GET", f"/v1/claims/{quote(claim, safe='')}"))
        else:
            typer.echo(_described(found))
        return _exit_code(found, state)

    try:
        code = with_client(context, call)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(code)


def _seconds(timeout: str) -> float:
    from holdfast.model.duration import seconds

    try:
        return seconds(timeout)
    except ValueError as error:
        raise CommandFailed(f"--timeout: {error}", 2) from None


def _described(claim: "Claim") -> str:
    if not claim.ended:
        return f"claim {claim.id} is {claim.state} on {claim.worker}"
    code = "" if claim.exit_code is None else f" with exit code {claim.exit_code}"
    why = f": {claim.reason}" if claim.reason else ""
    return f"claim {claim.id} ended as {claim.outcome}{code}{why}"


def _exit_code(claim: "Claim", state: str) -> int:
    """Returns the exit code. A claim that was active and has ended by now has also reached `active`."""
    if not claim.ended or claim.outcome == "released" or (state == "active" and claim.active_at is not None):
        return 0
    return code_of(claim)
