"""How many SQL statements a claim costs, counted in Postgres's own log. `python -m bench.statements` lists them.

A statement belongs to a claim if it was sent between the holder's request and the answer, and if its parameters name the claim or
its worker. Two kinds are left out. Polls that name the claim come from an agent that works for it already. Lists of workers come
from the duties, which look at many workers at once.
"""

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from .claims import staged
from .figure import Figure
from .part import Part
from .sizes import TINY, Sizes
from .stage import Stage

MARK = "@@bench "
ENTRY = re.compile(rf"^{MARK}(\d+) (\w+): {{2}}", re.MULTILINE)
QUIET = 4  # looks of 50 ms without a statement
TARGETS = {
    "statements of a job's claim until it is active": 5,
    "statements of a session's claim until it is active": 5,
    "statements of a renewal": 1,
    "statements of a release": 1,
}
SETTINGS = {"log_statement": "'all'", "log_line_prefix": f"'{MARK}%p '", "log_parameter_max_length": "-1"}


@dataclass(frozen=True)
class Entry:
    """One statement as Postgres logged it, with its parameters."""

    text: str

    def belongs_to(self, claim: str, worker: str | None = None) -> bool:
        if claim in self.text:
            return ".report(" not in self.text
        if worker is None or worker not in self.text:
            return False
        return re.search(rf"\{{[^}}]*{re.escape(worker)}", self.text) is None

    @property
    def short(self) -> str:
        return " ".join(self.text.split(":", 1)[-1].split())[:100]


class Log:
    """Reads what Postgres logs from now on."""

    def __init__(self, stage: Stage) -> None:
        self._path = stage.postgres.log
        self._at = self._path.stat().st_size

    def entries(self) -> list[Entry]:
        """Returns the statements since the last call. The server writes a line before it runs the statement."""
        with self._path.open(errors="replace") as file:
            file.seek(self._at)
            text = file.read()
            self._at = file.tell()
        return parse(text)


def parse(text: str) -> list[Entry]:
    """Splits a log into statements. The parameters come as a `DETAIL` entry of the same process, right after its statement."""
    found: list[str] = []
    last: dict[str, int] = {}  # the last statement of each server process
    heads = list(ENTRY.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=False):
        pid, kind, body = head[1], head[2], text[head.end() : end]
        if kind == "LOG" and body.startswith(("execute ", "statement: ")):
            last[pid] = len(found)
            found.append(body)
        elif kind == "DETAIL" and pid in last:
            found[last[pid]] += body
    return [Entry(each) for each in found]


async def statements(here: Stage, sizes: Sizes) -> AsyncIterator[Figure]:
    counts = await counted(here, sizes)
    for name, most in TARGETS.items():
        numbers = [len(entries) for entries in counts[name]]
        yield Figure(name, float(statistics.median(numbers)), "statements", "target", float(most), 1.0)


async def counted(here: Stage, sizes: Sizes) -> dict[str, list[list[Entry]]]:
    """Returns the statements of each claim, renewal and release, one after the other."""
    for setting, value in SETTINGS.items():
        await here.sql(f"ALTER SYSTEM SET {setting} = {value}")
    await here.sql("SELECT pg_reload_conf()")
    counts: dict[str, list[list[Entry]]] = {name: [] for name in TARGETS}
    for mode in ("job", "session"):
        pool = here.make_pool(mode, 4, 12)
        await _until_logged(here)
        for n in range(sizes.counted + 1):
            found = await asyncio.to_thread(_one, here, pool, mode)
            for name, entries in found.items():
                if n:  # the first one fills caches: token, pool, prepared statements
                    counts[name].append(entries)
            here.until_free(pool, 4)
    return counts


def _one(here: Stage, pool: str, mode: str) -> dict[str, list[Entry]]:
    log = Log(here)
    _until_quiet(log, pool)
    claim = _post(here, "/v1/claims", {"pool": pool, "wait": "30s"}, 201)
    mine = [entry for entry in log.entries() if entry.belongs_to(claim["id"], claim["worker"])]
    found = {f"statements of a {mode}'s claim until it is active": mine}
    if mode == "session":
        for verb, name in (("renew", "statements of a renewal"), ("release", "statements of a release")):
            _until_quiet(log, pool)
            _post(here, f"/v1/claims/{claim['id']}/{verb}", {"fence": claim["fence"]}, 200)
            found[name] = [entry for entry in log.entries() if entry.belongs_to(claim["id"])]
    return found


def _post(here: Stage, path: str, body: dict[str, Any], expected: int) -> Any:
    status, answer = here.api("POST", path, body)
    if status != expected:
        raise RuntimeError(f"{path} was answered with {status}: {answer}")
    return answer


def _until_quiet(log: Log, pool: str) -> None:
    """Waits until no statement names a worker of this pool. Otherwise the next count would include work of the last request."""
    quiet = 0
    while quiet < QUIET:
        quiet = 0 if any(f"w-{pool}-" in entry.text for entry in log.entries()) else quiet + 1
        time.sleep(0.05)


async def _until_logged(here: Stage) -> None:
    """Waits until the server logs statements, because it applies new settings a moment after the call."""
    log, end = Log(here), time.monotonic() + 10
    while not log.entries():
        assert time.monotonic() < end, "Postgres does not log its statements"
        await here.sql("SELECT 1")


STATEMENTS = Part("statements", staged, statements, lambda _: list(TARGETS))

if __name__ == "__main__":
    with staged(TINY) as place:
        for title, claims in asyncio.run(counted(place, TINY)).items():
            print(f"{title}: {len(claims[-1])}")
            for each in claims[-1]:
                print(f"    {each.short}")
