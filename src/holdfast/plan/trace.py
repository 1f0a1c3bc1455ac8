"""Traces: when each tenant claimed a worker, and how long it held it. Read from CSV; errors name line, field and reason."""

import csv
import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from ..model.duration import LONGEST
from ..model.pool import Name
from ..model.tenant import TenantName

COLUMNS = ("at", "tenant", "seconds", "pool", "priority")
REQUIRED = ("at", "seconds")
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
DEFAULT_TENANT = "default"  # the server's default for claims without a tenant


class Arrival(msgspec.Struct, frozen=True, order=True):
    """One claim: its time in seconds after the first claim, and how long its worker was held."""

    at: float
    seconds: float
    tenant: str = DEFAULT_TENANT
    pool: str | None = None
    priority: int = 0


class WrongTrace(Exception):
    """A trace is invalid. The message says where and why."""


class Trace(msgspec.Struct, frozen=True):
    arrivals: tuple[Arrival, ...]  # ordered by time; the first is at 0
    began: float | None = None  # Unix time of the first, or None if unknown

    @property
    def horizon(self) -> float:
        """Returns when the last claim would end if no claim ever waited."""
        return max(each.at + each.seconds for each in self.arrivals)

    @property
    def held(self) -> float:
        return sum(each.seconds for each in self.arrivals)

    @property
    def tenants(self) -> dict[str, int]:
        """Returns every tenant, with the highest priority of its claims."""
        found: dict[str, int] = {}
        for each in self.arrivals:
            found[each.tenant] = max(each.priority, found.get(each.tenant, 0))
        return found

    @property
    def pools(self) -> list[str]:
        return sorted({each.pool for each in self.arrivals if each.pool is not None})

    @property
    def peak(self) -> int:
        """Returns how many workers would be held at the same time if no claim ever waited."""
        steps = sorted([(each.at, 1) for each in self.arrivals] + [(each.at + each.seconds, -1) for each in self.arrivals])
        held, highest = 0, 0
        for _, step in steps:
            held += step
            highest = max(highest, held)
        return max(highest, 1)

    def of_pool(self, pool: str) -> "Trace | None":
        """Returns the claims of this pool, or None if there are none. A row without a pool counts for every pool."""
        return _from_zero([each for each in self.arrivals if each.pool in (None, pool)], self.began)

    def busiest(self, seconds: float) -> "Trace":
        """Returns the part of this length with the most worker-seconds."""
        best, best_work, work, first = 0, -1.0, 0.0, 0
        for last, each in enumerate(self.arrivals):
            work += each.seconds + 1e-6  # of two equal parts, prefer the one with more claims
            while self.arrivals[first].at <= each.at - seconds:
                work -= self.arrivals[first].seconds + 1e-6
                first += 1
            if work > best_work:
                best, best_work, until = first, work, last
        part = _from_zero(self.arrivals[best : until + 1], self.began)
        assert part is not None
        return part

    def cut(self, longest: float) -> "tuple[Trace, int]":
        """Returns the trace with all hold times limited to `longest`, and how many were cut."""
        over = sum(each.seconds > longest for each in self.arrivals)
        kept = [msgspec.structs.replace(each, seconds=min(each.seconds, longest)) for each in self.arrivals]
        return Trace(tuple(kept), self.began), over


def _from_zero(arrivals: Iterable[Arrival], began: float | None) -> Trace | None:
    kept = sorted(arrivals)
    if not kept:
        return None
    first = kept[0].at
    moved = [msgspec.structs.replace(each, at=round(each.at - first, 6)) for each in kept]
    return Trace(tuple(moved), None if began is None else began + first)


def read(file: TextIO, name: str) -> Trace:
    """Reads a trace. Raises WrongTrace with the line and the reason."""
    try:
        rows = list(_rows(csv.reader(file, strict=True), name))
    except (csv.Error, UnicodeDecodeError) as error:
        raise WrongTrace(f"{name}: not CSV in UTF-8: {error}") from None
    if not rows:
        raise WrongTrace(f"{name}: holds no arrivals")
    dated = [line for line, iso, _ in rows if iso]
    if dated and len(dated) < len(rows):
        other = next(line for line, iso, _ in rows if iso != rows[0][1])
        raise WrongTrace(f"{name}:{other}: at: seconds and dates are mixed; line {rows[0][0]} has the other kind")
    arrivals = [arrival for _, _, arrival in rows]
    trace = _from_zero(arrivals, 0.0 if dated else None)
    assert trace is not None
    return trace


def _rows(lines: Any, name: str) -> Iterator[tuple[int, bool, Arrival]]:
    columns: list[str] | None = None
    for fields in lines:
        if not fields or fields[0].startswith("#"):
            continue
        if columns is None:
            columns = _header([field.strip() for field in fields], f"{name}:{lines.line_num}")
            continue
        where = f"{name}:{lines.line_num}"
        if len(fields) != len(columns):
            raise WrongTrace(f"{where}: row: has {len(fields)} fields, and the header has {len(columns)}")
        iso, arrival = _arrival(dict(zip(columns, (field.strip() for field in fields), strict=True)), where)
        yield lines.line_num, iso, arrival


def _header(columns: list[str], where: str) -> list[str]:
    columns = [column.removeprefix("\ufeff") for column in columns]
    for column in columns:
        if column not in COLUMNS:
            raise WrongTrace(f"{where}: header: unknown column {column!r}; known: {', '.join(COLUMNS)}")
        if columns.count(column) > 1:
            raise WrongTrace(f"{where}: header: column {column!r} appears twice")
    for column in REQUIRED:
        if column not in columns:
            raise WrongTrace(f"{where}: header: column {column!r} is missing; a trace begins with: {','.join(COLUMNS)}")
    return columns


def _arrival(row: dict[str, str], where: str) -> tuple[bool, Arrival]:
    at, iso = _moment(row["at"], where)
    seconds = _number(row["seconds"], f"{where}: seconds")
    if seconds > LONGEST:
        raise WrongTrace(f"{where}: seconds: {row['seconds']} s is longer than a year")
    tenant = _converted(row.get("tenant") or DEFAULT_TENANT, TenantName, f"{where}: tenant", "not a tenant's name")
    pool = _converted(row["pool"], Name, f"{where}: pool", "not a pool's name") if row.get("pool") else None
    priority = row.get("priority") or "0"
    if not re.fullmatch(r"[0-9]", priority):
        raise WrongTrace(f"{where}: priority: {priority!r} is not a whole number from 0 to 9")
    return iso, Arrival(at, seconds, tenant, pool, int(priority))


def _moment(text: str, where: str) -> tuple[float, bool]:
    if NUMBER.fullmatch(text):
        return _number(text, f"{where}: at"), False
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        shown = "empty" if not text else f"{text!r} is"
        raise WrongTrace(f"{where}: at: {shown} neither seconds (12.5) nor a time (2026-03-02T09:00:00Z)") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp(), True


def _number(text: str, where: str) -> float:
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise WrongTrace(f"{where}: " + (f"{text!r} is not a number of seconds, 0 or more" if text else "empty"))
    return float(text)


def _converted(value: str, kind: Any, where: str, reason: str) -> str:
    try:
        return msgspec.convert(value, kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        raise WrongTrace(f"{where}: {value!r} is {reason}") from None


def write(trace: Trace, file: TextIO) -> None:
    """Writes the trace as `read` accepts it: with dates if they are known, otherwise with seconds."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(COLUMNS)
    for each in trace.arrivals:
        at = f"{each.at:.3f}"
        if trace.began is not None:
            moment = datetime.fromtimestamp(round(trace.began + each.at, 3), UTC)
            at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        out.writerow([at, each.tenant, f"{each.seconds:.3f}", each.pool or "", each.priority])
