"""Writes docs/metrics.md and docs/state-machines.md from the code that they describe. `make docs` runs it."""

import typing
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from holdfast.metrics import Metrics, StoredTotal
from holdfast.model.claim import CLAIM, OUTCOMES, How
from holdfast.model.machine import Machine
from holdfast.model.worker import WORKER

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Written by scripts/gen_docs.py: change the code, then `make docs`. -->"


def documents() -> dict[str, str]:
    """Returns the text of each file by its name."""
    return {"metrics.md": metrics(), "state-machines.md": state_machines()}


def metrics() -> str:
    found = [each for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase | StoredTotal)]
    stored = [each for each in found if isinstance(each, StoredTotal) or each._type == "gauge"]
    own = [each for each in found if each not in stored]
    return "\n".join(
        [
            "# Metrics",
            NOTE,
            "",
            "`GET /metrics` of any replica, with a token of the role `metrics`. No label names a tenant, a worker or a claim:",
            "there is no end of those. Ask `/v1/events` and `/v1/explain` about them.",
            "",
            "## Read from the database",
            "",
            "Every replica shows the same: take the maximum over replicas, not the sum. Totals are kept in the database, so a",
            "replica's restart does not reset them: `max by (duty) (rate(holdfast_duty_actions_total[5m]))`.",
            "",
            *_metric_table(stored),
            "",
            "## Counted by each replica",
            "",
            "From its start on: add them up over replicas.",
            "",
            *_metric_table(own),
            "",
        ]
    )


def _metric_table(found: list[MetricWrapperBase | StoredTotal]) -> list[str]:
    rows = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    for each in found:
        name, kind, names, meaning = described(each)
        labels = ", ".join(f"`{label}`" for label in names) or "–"
        rows.append(f"| `{name}` | {kind} | {labels} | {meaning} |")
    return rows


def described(metric: MetricWrapperBase | StoredTotal) -> tuple[str, str, tuple[str, ...], str]:
    """Returns name, type, labels and meaning of a metric. The library adds the ending of a counter's name."""
    if isinstance(metric, StoredTotal):
        return f"{metric.name}_total", "counter", metric.labels, metric.documentation
    ending = "_total" if metric._type == "counter" else ""
    return metric._name + ending, metric._type, tuple(metric._labelnames), metric._documentation


def state_machines() -> str:
    return "\n".join(
        [
            "# State machines",
            NOTE,
            "",
            "These tables are the code's own: SQL guards, the names of events and the property tests come from them. There is no",
            "way between two states that is not a row here.",
            "",
            *_machine(CLAIM),
            "What may end a claim, and nothing else (P2): " + ", ".join(f"`{how}`" for how in typing.get_args(How)) + ".",
            "",
            "| Ended while | Outcomes |",
            "|---|---|",
            *(f"| {state} | {', '.join(outcomes)} |" for state, outcomes in OUTCOMES.items()),
            "",
            *_machine(WORKER),
        ]
    )


def _machine(machine: Machine) -> list[str]:
    return [
        f"## A {machine.noun}",
        "",
        "```mermaid",
        machine.diagram(),
        "```",
        "",
        "| Transition | From | To | Event | Why |",
        "|---|---|---|---|---|",
        *(f"| `{t.name}` | {', '.join(t.sources) or '–'} | {t.target} | `{t.event}` | {t.why} |" for t in machine.transitions),
        "",
    ]


if __name__ == "__main__":
    for name, text in documents().items():
        (DOCS / name).write_text(text, encoding="utf-8")
