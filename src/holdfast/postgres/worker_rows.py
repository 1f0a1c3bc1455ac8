"""Convert a worker's record, with its claim and heartbeat, to the row that `converge` reads."""

import asyncpg
import msgspec

from ..model.pod import Heartbeat
from ..model.worker import Worker
from ..ports.store import Row

_WORKER_FIELDS = tuple(field.name for field in msgspec.structs.fields(Worker))


def row_of(row: asyncpg.Record, pool: asyncpg.Record) -> Row:
    heartbeat = None
    if row["doing"] is not None:
        heartbeat = Heartbeat(
            worker=row["id"],
            age=row["u_age"],
            doing=row["doing"],
            claim=row["u_claim"],
            fence=row["u_fence"],
            tenant=row["u_tenant"],
            served_fence=row["u_served_fence"],
            claim_ended=row["u_ended"],
            ahead=row["u_ahead"],
            reported_since_recovery=row["u_since"],
        )
    return Row(
        worker=Worker(**{name: row[name] for name in _WORKER_FIELDS}),
        age=row["age"],
        epoch=row["row_epoch"],
        pool_frozen=pool["frozen"],
        agent=pool["agent"],
        protection=pool["protection"],
        silence=pool["silence"],
        seal=pool["seal"],
        start_timeout=pool["start_timeout"],
        grace=pool["grace"],
        scheduled_age=row["scheduled_age"],
        claim_state=row["claim_state"],
        claim_retry=row["claim_retry"],
        claim_secret=bool(row["claim_secret"]),
        claim_losses=row["claim_losses"] or 0,
        claim_delivered=bool(row["claim_delivered"]),
        pod_protected=row["pod_protected"],
        heartbeat=heartbeat,
    )
