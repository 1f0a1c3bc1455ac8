"""Commands about one claim: create, hold, renew, release, cancel, read its output. `explain` is here as well."""

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from holdfast.model.shown import shown, shown_lines

from .completion import claim_or_worker, name_of_noun, names_of, one_of
from .connection import (
    CommandFailed,
    Key,
    Label,
    Output,
    PoolName,
    TenantName,
    check_durations,
    check_key,
    labels_of,
    not_empty,
    print_message,
    with_client,
)
from .describe import described, ways_in
from .exit_codes import NO_WORKER
from .listing import noun_of
from .output import OutputPrinter
from .show import print_json
from .times import local, localized
from .waiting import FIRST_WAIT, WhyItWaits, milliseconds, worker_within

if TYPE_CHECKING:
    from holdfast.client import ClaimOptions, Client, HeldWorker

ClaimId = Annotated[str, typer.Argument(help="The claim's id.", autocompletion=names_of("claims"), callback=not_empty)]
LONGEST_WAIT = 60.0  # seconds
EXPLAINED = ("pool", "worker", "claim")
FENCE = "The fence of the claim, which proves that you act for its holder. `holdfast get claims ID -o json` shows it."


def register(app: typer.Typer) -> None:
    for command in (claim, renew, release, cancel, logs, explain):
        app.command()(command)


def claim(
    context: typer.Context,
    pool: PoolName,
    tenant: TenantName = None,
    key: Key = None,
    lease: Annotated[str | None, typer.Option(help="The lease, such as 60s; the pool's by default.")] = None,
    label: Label = None,
    wait: Annotated[str, typer.Option(help="How long to wait for a worker, at most 60s.")] = "10s",
    hold: Annotated[
        bool, typer.Option("--hold", help="Wait for the worker, hold it until Ctrl-C or the end of its job, then release it.")
    ] = False,
    output: Output = "table",
) -> None:
    """Claim a worker and print the claim. The exit code is 124 if no worker was given in time.

    Example: holdfast claim --pool notebook --tenant acme --hold
    """
    check_key(key)
    check_durations(wait=wait, lease=lease)
    options: ClaimOptions = {"tenant": tenant, "key": key, "lease": lease, "labels": labels_of(label)}

    async def call(client: "Client") -> None:
        if hold:
            await _hold(client, pool, options, output)
            return
        from holdfast.model.duration import seconds

        longest = min(seconds(wait), LONGEST_WAIT)
        taken = await client.claim(pool, wait=milliseconds(min(longest, FIRST_WAIT)), **options)
        await worker_within(client, taken, longest - FIRST_WAIT)
        shown = await _print_claim(client, taken.id, output)
        if shown["state"] != "active":
            how = f"ended as {shown.get('outcome')}" if shown["state"] == "ended" else f"is still {shown['state']}"
            raise CommandFailed(f"no worker: claim {taken.id} {how}: {shown.get('reason') or 'no reason given'}", NO_WORKER)

    with_client(context, call)


async def _hold(client: "Client", pool: str, options: "ClaimOptions", output: str) -> None:
    from holdfast.client import ClaimEnded
    from holdfast.client import claim as held

    stop = asyncio.Event()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # during the wait, a signal cancels the claim
        loop.add_signal_handler(number, task.cancel)
    try:
        async with held(pool, client=client, news=WhyItWaits(), **options) as worker:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            await _print_claim(client, worker.claim_id, output)
            print_message(f"holding {worker.id}; Ctrl-C releases it")
            await _first_of(stop, worker.ended)
    except asyncio.CancelledError:
        raise CommandFailed("gave up waiting; the claim is cancelled", 130) from None
    except ClaimEnded as error:
        if error.claim.outcome == "refused":
            raise CommandFailed(f"no worker: {error}", NO_WORKER) from None
        if error.claim.outcome != "completed":
            raise
        print_message(f"claim {error.claim.id} ended as completed")  # a job that was quicker than our question
        return
    _print_how_it_ended(worker, "had already ended" if stop.is_set() else "ended")


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _print_how_it_ended(worker: "HeldWorker", ended: str) -> None:
    """Prints how the claim ended. Fails if it is not known that the release was stored."""
    if worker.unreleased is not None:
        ends = [("its lease", worker.lease_until), ("its longest duration", worker.max_until)]
        by = next(
            (f"{what} ends it, not before {local(at.isoformat())}" for what, at in ends if at), "nothing else is known to end it"
        )
        raise CommandFailed(f"claim {worker.claim_id}: the release was not stored ({worker.unreleased}); {by}")
    if worker.outcome == "failed":
        raise CommandFailed(f"claim {worker.claim_id} {ended} as failed")
    print_message(f"claim {worker.claim_id} " + ("released" if worker.outcome == "released" else f"{ended} as {worker.outcome}"))


async def _print_claim(client: "Client", claim_id: str, output: str) -> dict[str, Any]:
    """Prints the claim as it is now, and returns what the server answered."""
    import json

    answer = await client.raw("GET", f"/v1/claims/{quote(claim_id, safe='')}")
    found: dict[str, Any] = json.loads(answer)
    if output == "json":
        print_json(answer)
        return found
    typer.echo("\n".join([*described(found), *ways_in(found)]))
    sys.stdout.flush()
    return found


def _post(
    context: typer.Context, verb: str, claim_id: str, body: dict[str, Any], output: str, done: Callable[[dict[str, Any]], str]
) -> None:
    """Sends the request. Prints its answer as JSON, or the words that `done` makes of it."""
    path = f"/v1/claims/{quote(claim_id, safe='')}/{verb}"
    answer = with_client(context, lambda client: client.raw("POST", path, body=body, safe=True))
    if output == "json":
        print_json(answer)
        return
    import json

    typer.echo(f"claim {claim_id} {done(json.loads(answer))}")


def renew(
    context: typer.Context,
    claim: ClaimId,
    fence: Annotated[int, typer.Option(min=0, help=FENCE)],
    output: Output = "table",
) -> None:
    """Renew the lease of a claim once. `holdfast claim --hold` does so again and again.

    Example: holdfast renew c-1a2b3c --fence 1099511627777
    """

    def done(renewed: dict[str, Any]) -> str:
        if renewed.get("lease_until") is None:
            return "has no lease, so there is nothing to renew"
        return f"renewed until {local(renewed['lease_until'])}"

    _post(context, "renew", claim, {"fence": fence}, output, done)


def release(
    context: typer.Context,
    claim: ClaimId,
    fence: Annotated[int | None, typer.Option(min=0, help=FENCE + " Needed for another tenant's claim.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Take the worker from its holder; needs --reason.")] = False,
    reason: Annotated[str, typer.Option(help="The reason, which is stored in the history.")] = "",
    output: Output = "table",
) -> None:
    """Release a claim: its worker is parked for its tenant, or ends.

    Example: holdfast release c-1a2b3c --force --reason "its holder is gone"
    """
    if force and fence is not None:
        raise CommandFailed("--fence releases a claim for its holder, --force takes it from its holder; give only one of them", 2)
    if force and not reason:
        raise CommandFailed("--force takes a worker from its holder; give the reason with --reason", 2)
    body = {"force": force, "reason": reason} | ({} if fence is None else {"fence": fence})
    _post(context, "release", claim, body, output, lambda _: "released")


def cancel(
    context: typer.Context,
    claim: ClaimId,
    reason: Annotated[str, typer.Option(help="The reason, which is stored in the history.")] = "",
    output: Output = "table",
) -> None:
    """Cancel a claim, waiting or running.

    Example: holdfast cancel c-1a2b3c
    """
    _post(context, "cancel", claim, {"reason": reason}, output, lambda _: "cancelled")


def logs(
    context: typer.Context,
    claim: Annotated[
        str,
        typer.Argument(
            metavar="CLAIM|WORKER",
            help="The id of a claim (c-…) or of a worker (w-…).",
            autocompletion=claim_or_worker,
            callback=not_empty,
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the claim has ended.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="How many bytes to skip.")] = 0,
) -> None:
    """Print a job's output, or the last output of a worker.

    stdout and stderr of a job each go to their own stream. For a worker this is what its served process, its hooks and its agent
    wrote last, until a day after its end.

    Example: holdfast logs -f c-1a2b3c
    """
    if claim.startswith("w-"):
        if follow or offset:
            raise CommandFailed(
                "--follow and --offset are for claims; a worker's log is shown whole, as its agent sent it last", 2
            )
        _print_worker_log(context, claim)
        return

    async def call(client: "Client") -> None:
        printer = OutputPrinter(claim)
        async for piece in client.output_pieces(claim, offset=offset, follow=follow, truncated=printer.truncated):
            printer.print(piece)
        printer.finish()

    try:
        with_client(context, call)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _print_worker_log(context: typer.Context, worker: str) -> None:
    import json

    answer = with_client(context, lambda client: client.raw("GET", f"/v1/workers/{quote(worker, safe='')}/log"))
    found = json.loads(answer)
    if found["at"] is None:
        print_message(f"worker {worker} has sent no output yet")
        return
    typer.echo(shown_lines(found["text"].removesuffix("\n")))


def explain(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help="The kind of thing to explain: pool, worker or claim.", metavar="KIND", autocompletion=one_of(*EXPLAINED)
        ),
    ],
    name: Annotated[str, typer.Argument(help="Its name or id.", autocompletion=name_of_noun, callback=not_empty)],
    output: Output = "table",
) -> None:
    """Explain the state of a pool, worker or claim in sentences.

    Example: holdfast explain claim c-1a2b3c
    """
    kind = noun_of(kind, EXPLAINED)
    answer = with_client(context, lambda client: client.raw("GET", f"/v1/explain/{kind}/{quote(name, safe='')}"))
    if output == "json":
        print_json(answer)
        return
    import json

    for sentence in json.loads(answer)["sentences"]:
        # An indented line is a worker's own output.
        typer.echo(shown(sentence if sentence.startswith(" ") else localized(sentence)))
