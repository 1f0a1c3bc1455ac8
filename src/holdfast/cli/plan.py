"""`plan`: finds how many warm workers a pool needs, by running the real matching and scaling over a trace of arrivals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from .connection import CommandFailed, Format, print_message, with_client
from .show import print_json

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.model.pool import PoolSpec
    from holdfast.model.tenant import TenantSpec
    from holdfast.plan.export import Exported
    from holdfast.plan.figures import Target
    from holdfast.plan.trace import Trace

T = TypeVar("T")

BUSIEST = 7200.0  # seconds of a longer trace that are simulated without --whole and --busiest


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    context: typer.Context,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="CSV: at,seconds,tenant,pool,priority; - is stdin.")] = None,
    synthetic: Annotated[Literal["day", "steady", "bursts"] | None, typer.Option(help="Generate a trace; see --rate.")] = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="Take the trace from the claims of the running fleet.")] = False,
    warm: Annotated[str | None, typer.Option(help="Settings to try: 2..40, 2..40/2, or 2,4,8.")] = None,
    target: Annotated[str, typer.Option(help="The wait that is good enough, for p50, p95, p99 or longest.")] = "p95=1s",
    pool: Annotated[str | None, typer.Option(help="Only this pool's rows; with --file or --fleet also its spec.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Pools and tenants as for `apply`.")] = None,
    max_: Annotated[
        int | None, typer.Option("--max", min=1, help="The pool's max; its spec's by default, or no limit without a spec.")
    ] = None,
    start_time: Annotated[str, typer.Option(help="Time from a worker's creation until it is ready: 5s, or 4s..9s.")] = "5s",
    busiest: Annotated[str | None, typer.Option(help="Simulate only the busiest stretch of this length; 2h by default.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Simulate all of a trace that is longer than 2h.")] = False,
    rate: Annotated[str, typer.Option(help="With --synthetic: how many claims arrive.")] = "100/h",
    duration: Annotated[str, typer.Option(help="With --synthetic: how long a claim is held on average.")] = "60s",
    length: Annotated[
        str | None, typer.Option(help="With --synthetic: the trace's length; 24h for `day`, 2h for others.")
    ] = None,
    tenants: Annotated[int, typer.Option(min=1, max=1000, help="With --synthetic: how many tenants there are.")] = 1,
    since: Annotated[str, typer.Option(help="With --fleet: how far back; history is kept for 7 days.")] = "24h",
    export: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the trace to this file; - is stdout. Without --warm nothing is simulated."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=40, help="How many settings run at the same time.")] = os.cpu_count() or 1,
    output: Annotated[Format, typer.Option("--output", "-o", help="A table and a plot, or JSON.")] = "table",
) -> None:
    """Find how many warm workers a pool needs.

    The real matching and scaling run over a recorded or generated trace.

    Example: holdfast plan --trace arrivals.csv --warm 2..40/2 --target p95=2s
    """
    from msgspec.structs import replace

    from holdfast.plan.figures import parse_start, parse_target, parse_warm

    wanted, starts = _parsed("--target", parse_target, target), _parsed("--start-time", parse_start, start_time)
    settings = _parsed("--warm", parse_warm, warm) if warm is not None else []
    if not settings and export is None:
        raise CommandFailed("name the settings to try with --warm, such as 2..40/2; or --export FILE to write a trace only", 2)
    sources = [trace is not None, synthetic is not None, fleet]
    if sum(sources) > 1 or (not any(sources) and export is None):
        raise CommandFailed("name the source of the trace: one of --trace FILE, --synthetic SHAPE or --fleet", 2)
    if trace is not None:
        found = _read(trace)
    elif synthetic is not None:
        found = _synthetic(synthetic, rate, duration, length, tenants)
    else:
        found = _from_fleet(context, pool, since)
    if export is not None:
        _write(found, export)
    if not settings:
        return
    name, spec, limits = _pool(context, file, pool, fleet, found)
    part = _part(found.of_pool(name) or found, busiest, whole)
    highest = max_ or (spec.max if file is not None or fleet else part.peak + max(settings))
    spec = replace(spec, max=highest, warm=0)
    _run(name, spec, limits, starts, settings, part, wanted, jobs, output)


def _parsed(option: str, parse: Callable[[str], T], value: str) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise CommandFailed(f"{option}: {error}", 2) from None


# Where a trace comes from, and where it goes


def _read(name: str) -> Trace:
    from holdfast.plan import trace

    try:
        if name == "-":
            return trace.read(sys.stdin, "stdin")
        with Path(name).open(newline="", encoding="utf-8") as file:
            return trace.read(file, name)
    except trace.WrongTrace as wrong:
        raise CommandFailed(str(wrong)) from None


def _synthetic(shape: Literal["day", "steady", "bursts"], rate: str, hold: str, length: str | None, tenants: int) -> Trace:
    from holdfast.model.duration import seconds
    from holdfast.plan.synthetic import parse_rate, synthesize

    per_second, mean = _parsed("--rate", parse_rate, rate), _parsed("--duration", seconds, hold)
    long = _parsed("--length", seconds, length) if length is not None else None
    if mean <= 0 or long == 0:
        raise CommandFailed("--duration and --length must be longer than 0s", 2)
    return _parsed("--synthetic", lambda _: synthesize(shape, per_second, mean, long, tenants), shape)


def _from_fleet(context: typer.Context, pool: str | None, since: str) -> Trace:
    from holdfast.model.duration import seconds
    from holdfast.plan.export import export

    past = _parsed("--since", seconds, since)

    async def call(client: Client) -> Exported:
        now = time.time() + client.transport.skew
        return await export(client, pool=pool, since=now - past, now=now)

    got = with_client(context, call)
    if got.never_held:
        print_message(
            f"{got.never_held} claims that never had a worker are left out: how long they would have held it is not known"
        )
    if got.still_held:
        print_message(f"{got.still_held} claims are still held, and count as held until now")
    if got.trace is None:
        raise CommandFailed(f"no claim{f' of pool {pool!r}' if pool else ''} was held in the last {since}")
    return got.trace


def _write(found: Trace, to: str) -> None:
    from holdfast.plan import trace

    if to == "-":
        trace.write(found, sys.stdout)
        return
    with Path(to).open("w", newline="", encoding="utf-8") as file:
        trace.write(found, file)
    print_message(f"{len(found.arrivals)} claims written to {to}")


# What is simulated


def _pool(
    context: typer.Context, file: Path | None, pool: str | None, fleet: bool, found: Trace
) -> tuple[str, PoolSpec, dict[str, TenantSpec]]:
    """Returns the pool's name and spec, and the tenants' limits."""
    import msgspec

    from holdfast.model.pool import PoolSpec
    from holdfast.model.tenant import TenantSpec

    from . import manifest

    limits = {tenant: TenantSpec(max_priority=priority) for tenant, priority in found.tenants.items()}
    known: dict[str, Any] = {}
    if file is not None:
        try:
            documents = manifest.read(file.read_text(), str(file))
        except manifest.WrongManifest as wrong:
            raise CommandFailed(str(wrong)) from None
        limits |= {each.name: msgspec.convert(each.spec, TenantSpec) for each in documents if each.kind == "Tenant"}
        known = {each.name: each.spec for each in documents if each.kind == "WorkerPool"}
    names = [pool] if pool is not None else found.pools or list(known) or ["plan"]
    if len(names) > 1:
        raise CommandFailed(f"which pool? Choose one with --pool: {', '.join(names)}", 2)
    name = names[0]
    if found.pools and found.of_pool(name) is None:
        raise CommandFailed(f"the trace has no claims of pool {name!r}; it has: {', '.join(found.pools)}", 2)
    if file is not None and name not in known:
        raise CommandFailed(f"{file}: no pool {name!r}; it has: {', '.join(known) or 'none'}", 2)
    if file is None and fleet:
        known[name] = with_client(context, lambda client: client.get_pool(name)).spec
    return name, msgspec.convert(known.get(name, {}), PoolSpec), limits


def _part(found: Trace, busiest: str | None, whole: bool) -> Trace:
    from holdfast.model.duration import seconds, text

    stretch = _parsed("--busiest", seconds, busiest) if busiest is not None else BUSIEST
    span = found.arrivals[-1].at
    if stretch <= 0 or (busiest is not None and whole):
        raise CommandFailed("--busiest must be longer than 0s, and does not go with --whole", 2)
    if whole or span <= stretch:
        return found
    part = found.busiest(stretch)
    print_message(
        f"the busiest {text(stretch)} of {text(span)}: {len(part.arrivals)} of {len(found.arrivals)} claims; --whole takes all"
    )
    return part


def _run(
    name: str, spec: PoolSpec, limits: dict[str, TenantSpec], starts: tuple[float, float], settings: list[int], trace: Trace,
    wanted: Target, jobs: int, output: str,
) -> None:  # fmt: skip
    from msgspec.structs import replace

    from holdfast.model.duration import seconds, text
    from holdfast.plan import many, report
    from holdfast.plan.fleet import Setting
    from holdfast.plan.interruption import Interrupted
    from holdfast.plan.progress import Progress

    if settings[-1] > spec.max:
        raise CommandFailed(f"--warm: {settings[-1]} is more than the pool's max ({spec.max}); raise it with --max", 2)
    if starts[1] >= seconds(spec.start_timeout):
        raise CommandFailed(f"--start-time: a worker of this pool is given up after its startTimeout, {spec.start_timeout}", 2)
    trace, cut = trace.cut(spec.max_duration)
    if cut:
        print_message(
            f"{cut} claims were held for longer than maxDuration, {text(spec.max_duration)}: the server would end them then"
        )
    limits = {tenant: limits[tenant] for tenant in trace.tenants}
    tries = [Setting(name, replace(spec, warm=warm), starts, limits) for warm in settings]
    progress = Progress(len(tries))
    try:
        found = many.run_settings(tries, trace, min(jobs, len(tries)), progress)
    except many.RunFailed as broken:
        raise CommandFailed(str(broken)) from None
    except Interrupted as interrupted:
        progress.leave()
        raise CommandFailed("interrupted; all processes have ended and the files are removed", 128 + interrupted.number) from None
    if output == "json":
        pool = {"name": name, "mode": spec.mode, "max": spec.max, "start_seconds": list(starts)}
        print_json(report.as_json(pool, trace, found, wanted))
        return
    held = f"{len(trace.arrivals)} claims in {text(trace.horizon)}, at most {trace.peak} at once"
    print(f"pool {name} ({spec.mode}, max {spec.max}, start time {'..'.join(dict.fromkeys(map(text, starts)))}): {held}\n")
    print("\n".join([*report.table(found, wanted), "", *report.plot(found, wanted), "", report.advice(found, wanted)]))
