"""Build the WHERE of a list from the filters that a caller gave.

A filter that was not given is not in the statement. With `$1 IS NULL OR …`, Postgres could not choose the index that serves the
given filters once it keeps one plan for all calls.
"""

import msgspec

from ..model.label import LabelFilter
from ..ports.store import ClaimFilters, WorkerFilters


class Conditions:
    """Conditions and their arguments. The texts are constants of the code; only arguments come from callers."""

    def __init__(self, *args: object) -> None:
        """`args` are the first arguments of the statement, which stand before those of the conditions."""
        self.args: list[object] = list(args)
        self._texts: list[str] = []

    def add(self, text: str, *values: object) -> None:
        """Adds a condition. Each `{}` in its text is replaced with the number of one value: `worker_id = {}`."""
        numbers = [f"${len(self.args) + n}" for n in range(1, len(values) + 1)]
        self.args.extend(values)
        self._texts.append(text.format(*numbers))

    def given(self, text: str, value: object) -> None:
        """Adds a condition unless its value is None, which means that the caller does not filter by it."""
        if value is not None:
            self.add(text, value)

    @property
    def where(self) -> str:
        return " AND ".join(self._texts) or "true"


OF_POOL = "{}.pool_id IN (SELECT id FROM holdfast.pool WHERE name = {{}})"


def filter_claims(conditions: Conditions, about: ClaimFilters) -> None:
    """Adds the filters of claims; the statement calls the table `c`."""
    conditions.given(OF_POOL.format("c"), about.get("pool"))
    conditions.given("c.tenant = {}", about.get("tenant"))
    conditions.given("c.state = {}", about.get("state"))
    conditions.given("c.outcome = {}", about.get("outcome"))
    # Only while the key names its claim (P1), because the index of keys has no older ones.
    conditions.given("c.key_live AND c.key = {}", about.get("key"))
    # A claim that was never active shows no worker, so it is not found by its worker either (P1, P3).
    conditions.given("c.active_at IS NOT NULL AND c.worker_id = {}", about.get("worker"))
    conditions.given("c.created_at >= to_timestamp({}::float8)", about.get("since"))
    filter_labels(conditions, about.get("labels"))


def filter_labels(conditions: Conditions, labels: LabelFilter | None) -> None:
    """Adds the filter of a claim's labels; the statement calls the table `c`."""
    if labels is not None and labels.equal:
        conditions.add("c.labels @> {}::jsonb", msgspec.json.encode(labels.equal).decode())
    if labels is not None and labels.present:
        conditions.add("c.labels ?& {}::text[]", list(labels.present))


def filter_workers(conditions: Conditions, about: WorkerFilters) -> None:
    """Adds the filters of workers; the statement calls the table `w`. Workers that are gone are left out unless they are asked for."""
    conditions.given(OF_POOL.format("w"), about.get("pool"))
    conditions.given("w.tenant = {}", about.get("tenant"))
    if (state := about.get("state")) is None:
        conditions.add("w.state <> 'gone'")
    else:
        conditions.add("w.state = {}", state)
    conditions.given("w.created_at >= to_timestamp({}::float8)", about.get("since"))
