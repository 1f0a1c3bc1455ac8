"""Writes each part's table into docs/benchmarks.md, between two markers, so that no figure there is typed by hand."""

import datetime
import os
import re
import subprocess
from pathlib import Path

from . import ROOT
from .figure import Figure

DOCS = ROOT / "docs" / "benchmarks.md"
HEAD = "| Figure | Value | Limit | Ratio | Target | Met |\n|---|---|---|---|---|---|\n"
CELL = re.compile(r"^\| ([^|]+?) \|", re.MULTILINE)


class NoMarkers(Exception):
    """The document has no place for this table. Add the two markers to fix this."""


def write(part: str, figures: list[Figure], path: Path = DOCS) -> None:
    """Replaces the table of this part. The rest of the document is not touched."""
    text = path.read_text()
    begin, end = _markers(part)
    if begin not in text or end not in text:
        raise NoMarkers(f"{path.name} has no lines {begin!r} and {end!r}: add them where the table of {part!r} belongs")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n{_about()}\n\n{HEAD}{''.join(map(row, figures))}{end}{after}")


def names(part: str, path: Path = DOCS) -> list[str]:
    """Returns the figures that the document shows for this part, in order."""
    begin, end = _markers(part)
    table = path.read_text().partition(begin)[2].partition(end)[0]
    return CELL.findall(table)[1:]  # without the head; the line below it has no spaces


def row(figure: Figure) -> str:
    limit = figure.limit if figure.limit_value is None else f"{figure.limit}: {_number(figure.limit_value)}"
    ratio = "–" if figure.ratio is None else _number(figure.ratio)
    met = {None: "–", True: "yes", False: "**no**"}[figure.ok]
    cells = (figure.figure, f"{_number(figure.value)} {figure.unit}", limit, ratio, figure.target_text or "–", met)
    return f"| {' | '.join(cells)} |\n"


def _markers(part: str) -> tuple[str, str]:
    return f"<!-- bench {part}: begin -->", f"<!-- bench {part}: end -->"


def _about() -> str:
    """Returns when, from which commit and on which machine the table was written."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    load, cores = os.getloadavg()[1], os.cpu_count() or 1
    busy = "; the machine was busy with other work, so read only the ratios" if load > 2 * cores else ""
    return f"Measured on {today} at commit {commit()}, on {cores} cores, load average {load:.1f}{busy}."


def commit() -> str:
    """Returns the short id of the checked-out commit, with a note if other files than this document differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/benchmarks.md")
    return f"`{head}`" + (" with changes" if changed else "") if head else "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _number(value: float) -> str:
    """Returns three significant digits, without an exponent."""
    if value >= 1_000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.3g}'):g}"
