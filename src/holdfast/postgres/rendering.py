"""Fill the placeholders in SQL: the functions' schema, guards and sets of states, named predicates, numbers."""

import hashlib
import re
from pathlib import Path

from ..model.activation import FAILING_CLAIMS, FIRST_BACKOFF, LONGEST_BACKOFF, MAX_ACTIVATIONS
from ..model.claim import BATCH, CLAIM, EPOCH_MARGIN, FENCE_BITS, KEPT_CLAIMS, KEY_HOURS, LIVE, MAX_LOST_RETRIES
from ..model.machine import sql_list
from ..model.tenant import MAX_OUTPUT_BYTES, MAX_WAITING
from ..model.worker import FREE, LIVING, LOG_HOURS, STARTED, WORKER

HERE = Path(__file__).parent
MACHINES = {"claim": CLAIM, "worker": WORKER}
# Sets that are not the guard of a transition.
SETS = {"claim.live": LIVE, "worker.free": FREE, "worker.started": STARTED, "worker.living": LIVING}
NUMBERS = {
    "BATCH": BATCH,
    "EPOCH_MARGIN": EPOCH_MARGIN,
    "FAILING_CLAIMS": FAILING_CLAIMS,
    "FENCE_BITS": FENCE_BITS,
    "FIRST_BACKOFF": FIRST_BACKOFF,
    "KEPT_CLAIMS": KEPT_CLAIMS,
    "KEY_HOURS": KEY_HOURS,
    "LOG_HOURS": LOG_HOURS,
    "LONGEST_BACKOFF": LONGEST_BACKOFF,
    "MAX_ACTIVATIONS": MAX_ACTIVATIONS,
    "MAX_LOST_RETRIES": MAX_LOST_RETRIES,
    "MAX_OUTPUT_BYTES": MAX_OUTPUT_BYTES,
    "MAX_WAITING": MAX_WAITING,
}

# Predicates about a row, written in SQL as `@free(w)`. The statement itself has to name the worker's state, otherwise Postgres
# cannot use its partial indexes.
CONFIRMED = "{w}.unconfirmed_since IS NULL"  # the same rule as `Worker.confirmed`
CAPACITY = f"NOT {{w}}.terminating AND {{w}}.schedulable AND {{w}}.suspect_since IS NULL AND {CONFIRMED}"
PREDICATES = {
    "confirmed": CONFIRMED,  # the worker may be given out or ended, and its stalled hand-over may be taken back
    "coming": f"{{w}}.suspect_since IS NULL AND {CONFIRMED}",  # the starting worker will become warm without an operator
    "capacity": CAPACITY,  # the worker can be given out, perhaps only after its reset
    "free": f"{{w}}.ready AND {CAPACITY}",  # the worker can be given out now
    "failing": "cardinality({w}.activation_failing) >= @FAILING_CLAIMS",  # the pool's activations fail, so it waits
}


def functions_text() -> str:
    return "\n".join(path.read_text() for path in sorted((HERE / "functions").glob("*.sql")))


def functions_schema() -> str:
    """Returns the name of this release's functions schema: a hash of the rendered text, so that releases never share it."""
    return "holdfast_" + hashlib.sha256(render(functions_text(), "fn").encode()).hexdigest()[:8]


def render(sql: str, functions: str) -> str:
    """Fills in `@fn`, guards such as `@worker.condemn`, sets such as `@claim.live`, predicates such as `@free(w)`, and numbers such
    as `@KEY_HOURS`."""

    def guard(match: re.Match[str]) -> str:
        states = SETS.get(f"{match[1]}.{match[2]}")
        return sql_list(states) if states is not None else MACHINES[match[1]].guard(match[2])

    def predicate(match: re.Match[str]) -> str:
        return f"({PREDICATES[match[1]].format(w=match[2])})"

    sql = re.sub(r"@(claim|worker)\.(\w+)", guard, sql)
    sql = re.sub(rf"@({'|'.join(PREDICATES)})\((\w+)\)", predicate, sql)
    sql = re.sub(r"@([A-Z_]+)\b", lambda match: str(NUMBERS[match[1]]), sql)
    return sql.replace("@fn", functions)


def asking(text: str, args: int) -> str:
    """Turns `@acting` into a call of `acting` with the mark. The mark is passed after the statement's own `args` arguments."""
    assert "@acting" in text, "a statement that gives out, spawns or ends something must contain @acting"
    return text.replace("@acting", f"@fn.acting(${args + 1})")
