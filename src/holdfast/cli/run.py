"""`run`: runs a command on a warm worker as if it ran on this machine.

Ctrl-C cancels the claim and waits for its end; a second Ctrl-C exits without waiting. A hang-up (SIGHUP) leaves the job alone.
The exit code is the job's own, or one of exit_codes.py.
"""

import asyncio
import contextlib
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .connection import (
    CommandFailed,
    Key,
    Label,
    Output,
    PoolName,
    TenantName,
    check_key,
    hide,
    labels_of,
    print_message,
    print_priority,
    with_client,
)
from .exit_codes import TABLE, RunsCommand, code_of
from .output import OutputPrinter
from .show import print_json
from .stdin import Stdin, check_unused, watch_unused
from .waiting import FIRST_WAIT, POLL, WhyItWaits, milliseconds

if TYPE_CHECKING:
    from holdfast.client import Claim, ClaimOptions, Client

DETACH_SECONDS = 5.0  # for sending the end of the input
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def register(app: typer.Typer) -> None:
    app.command(cls=RunsCommand, context_settings={"allow_interspersed_args": False}, epilog=TABLE)(run)


def run(
    context: typer.Context,
    pool: PoolName,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- CMD...]", help="The command and its arguments; without it, the pool's own command runs."),
    ] = None,
    tenant: TenantName = None,
    key: Key = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An environment variable; can be repeated.")] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE|NAME=@FILE",
            help="Like --env, but never shown, and erased at hand-over. A file's last newline is removed.",
        ),
    ] = None,
    deadline: Annotated[str | None, typer.Option(help="Refuse the claim if no worker is free within this time.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="Higher is served earlier.")] = None,
    retry: Annotated[Literal["lost"] | None, typer.Option(help="Run the command again if its worker died.")] = None,
    label: Label = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the claim's id and exit.")] = False,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Pass stdin to the command.")] = False,
    output: Output = "table",
) -> None:
    """Run a command on a warm worker, and exit with its code.

    Its output is printed while it runs. Without a command, the pool's own runs (worker.run, or the command of its template).

    Example: holdfast run --pool linux --env CI=1 -- make test
    """
    check_key(key)
    if command and not command[0]:
        raise CommandFailed("the command is empty: name a program after --", 2)
    if interactive and detach:
        raise CommandFailed("--interactive: with --detach there is nobody to pass stdin; leave out one of them", 2)
    if not interactive:
        check_unused()
    secrets = _pairs("--secret", secret, files=True)
    hide(*secrets.values())
    options: ClaimOptions = {
        "tenant": tenant,
        "key": key,
        "command": command or None,
        "env": _pairs("--env", env) or None,
        "secrets": secrets or None,
        "deadline": deadline,
        "priority": priority,
        "retry": retry,
        "labels": labels_of(label),
        "stdin": interactive or None,
    }

    async def call(client: "Client") -> int:
        if detach:
            claim = await client.claim(pool, wait="0s", **options)
            print_priority(claim.priority_reason)
            if output == "json":
                print_json({"id": claim.id, "state": claim.state})
            else:
                typer.echo(claim.id)
            return 0
        return await _Job(client).run(pool, options)

    raise typer.Exit(with_client(context, call))


def _pairs(option: str, given: list[str] | None, *, files: bool = False) -> dict[str, str]:
    """Parses NAME=VALUE options. Errors show the option and the name, never a value."""
    pairs: dict[str, str] = {}
    for number, each in enumerate(given or (), 1):
        name, equals, value = each.partition("=")
        if not equals or not NAME.fullmatch(name):
            raise CommandFailed(f"{option} (number {number}): expected NAME=VALUE with a variable's name", 2)
        if files and value.startswith("@"):
            try:
                value = Path(value[1:]).read_text().removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                # Without the file's name, because it may be a secret that begins with @.
                what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise CommandFailed(f"{option} {name}: the file after @ could not be read: {what}") from None
        if value.encode(errors="replace").decode() != value:  # the error of the JSON encoder would show a character of it
            raise CommandFailed(f"{option} {name}: the value is not UTF-8 text", 2)
        pairs[name] = value
    return pairs


class _Job:
    """One run of a command: its claim, once known, and the first signal that was received, if any."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._claim: Claim | None = None
        self._signal: int | None = None
        self._left = asyncio.Event()
        self._known = asyncio.Event()  # set when the server has answered with the claim
        self._cancelling: asyncio.Task[None] | None = None
        self._why = WhyItWaits()
        self._stdin: Stdin | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._input_differs = False

    async def run(self, pool: str, options: "ClaimOptions") -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup(1) ignores it, and `run` goes on
            loop.add_signal_handler(signal.SIGHUP, self._on_hang_up)
        work = asyncio.create_task(self._work(pool, options))
        leaving = asyncio.create_task(self._left.wait())
        await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if work.done():
            return work.result()
        if self._signal == signal.SIGHUP:
            return await self._detach(work)
        work.cancel()
        await asyncio.wait([work])
        assert self._signal is not None
        print_message(f"left claim {self._claim.id if self._claim else '(not known yet)'}; it may go on")
        return 128 + self._signal

    async def _detach(self, work: "asyncio.Task[int]") -> int:
        """Leaves the job alone and prints how to attach again. If the request for the claim is still in progress, this waits for
        its answer, because without the id the user could not find the job."""
        known = asyncio.create_task(self._known.wait())
        await asyncio.wait([work, known], return_when=asyncio.FIRST_COMPLETED)
        known.cancel()
        if self._claim is None:
            return work.result()  # the request failed, so there is no job
        if self._stdin is not None and self._feeding is not None:
            self._stdin.stop()  # the command reads the end of its input, instead of waiting for more
            await asyncio.wait([self._feeding], timeout=DETACH_SECONDS)
        work.cancel()
        await asyncio.wait([work])
        with contextlib.suppress(OSError):  # the terminal may be gone
            print_message(f"detached from claim {self._claim.id}, which goes on; attach again: holdfast logs -f {self._claim.id}")
        return 128 + signal.SIGHUP

    async def _work(self, pool: str, options: "ClaimOptions") -> int:
        claim = self._claim = await self._client.claim(pool, wait=milliseconds(FIRST_WAIT), **options)
        self._known.set()
        if options.get("stdin"):
            self._stdin = Stdin()
            self._feeding = asyncio.create_task(self._feed(claim.id, self._stdin))
        else:
            watch_unused()
        # The claim exists now and continues while no server is reachable, so wait for a server without a limit, and say so.
        self._client.transport.patience = float("inf")
        self._client.transport.on_late = None  # it would say the same a second time
        self._client.transport.on_delay = lambda error: print_message(
            f"claim {claim.id} goes on; waiting for the server: {error}"
        )
        if self._signal not in (None, signal.SIGHUP):
            self._cancel()
        print_priority(claim.priority_reason)
        self._why(claim)
        claim = await self._client.until(claim, "active", poll=milliseconds(POLL), news=self._why)
        if self._why.printed and not claim.ended:
            print_message(f"claim {claim.id} runs on {claim.worker}")
        printer = OutputPrinter(claim.id)
        async for piece in self._client.output_pieces(claim.id, follow=True, truncated=printer.truncated):
            try:
                printer.print(piece)
            except BrokenPipeError:
                sys.stdout = None  # nothing to flush at exit
                raise CommandFailed(f"the reader of the output has closed the pipe; claim {claim.id} goes on", 141) from None
        printer.finish()
        claim = await self._client.until(claim, "ended")
        if self._feeding is not None:
            await self._stop_feeding(claim)
        if self._cancelling is not None:
            await asyncio.wait([self._cancelling])
        return self._exit_code(claim)

    async def _feed(self, claim_id: str, stdin: Stdin) -> None:
        """Sends stdin. If that fails, the claim is cancelled, because its command would wait for input forever. It is not
        cancelled if another `run` with the same key has sent other input, because the job is that run's too."""
        from holdfast.client import Conflict, HoldfastError

        try:
            await self._client.send_input(claim_id, stdin.pieces())
        except HoldfastError as error:
            print_message(f"claim {claim_id}: its input could not be sent: {error}")
            self._input_differs = isinstance(error, Conflict) and error.code == "input-differs"
            if not self._input_differs:
                self._cancel()

    async def _stop_feeding(self, claim: "Claim") -> None:
        """Checks that the command could read what was sent to it."""
        assert self._feeding is not None
        self._feeding.cancel()
        await asyncio.wait([self._feeding])
        if self._input_differs:
            raise CommandFailed(f"claim {claim.id}: the command has read input that was sent before, and not this input")
        sent = await self._client.get_input(claim)
        if sent.offset and sent.taken is None and claim.active_at is not None:
            raise CommandFailed(
                f"claim {claim.id}: the agent of {claim.worker} is of a release that passes no input; the command has read none"
            )

    def _exit_code(self, claim: "Claim") -> int:
        if claim.outcome in ("completed", "failed"):
            if claim.exit_code in (126, 127) and claim.reason:
                print_message(claim.reason)  # because a command that could not be started prints nothing
            return code_of(claim)
        print_message(f"claim {claim.id} ended as {claim.outcome}: {claim.reason or 'no reason given'}")
        if claim.outcome == "cancelled" and self._signal is not None:
            return 128 + self._signal
        return code_of(claim)

    def _on_hang_up(self) -> None:
        if self._signal is None:
            self._signal = signal.SIGHUP
            self._left.set()

    def _on_signal(self, number: int) -> None:
        if self._signal is not None:
            self._left.set()
            return
        self._signal = number
        print_message("cancelling the claim; interrupt again to exit without waiting for its end")
        if self._claim is not None:
            self._cancel()

    def _cancel(self) -> None:
        assert self._claim is not None
        self._cancelling = asyncio.create_task(self._send_cancel(self._claim.id))

    async def _send_cancel(self, claim_id: str) -> None:
        from holdfast.client import HoldfastError

        try:
            await self._client.cancel(claim_id, reason="its caller interrupted it")
        except HoldfastError as error:
            print_message(f"claim {claim_id} could not be cancelled: {error}")
