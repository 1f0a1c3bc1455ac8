"""Minutes of random faults on a real fleet. Then the faults stop, and every job, session, claim and process must be right.

HOLDFAST_SOAK_SECONDS and HOLDFAST_SOAK_SEED choose a run. The seed fixes the faults and their order, but not their exact times.
So a seed that has failed once fails often, but not always.
"""

import asyncio
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from soak_faults import Faults
from soak_work import Job, Work

from fleet import JOB, SESSION, Fleet, eventually
from holdfast.demo import machine
from holdfast.wiring import local_cluster

SECONDS = float(os.environ.get("HOLDFAST_SOAK_SECONDS", "60"))
SETTLE = 150.0  # seconds after the faults: a row without a pod may take 90 s, and a burst of claims waits for new workers
WARM = {"linux": 3, "notebook": 2}
POOLS: dict[str, dict[str, Any]] = {
    "linux": {**JOB, "warm": WARM["linux"], "max": 10},
    # The lease is longer than a paused replica can delay one renewal (10 s). Otherwise a session could be lost by our own fault.
    "notebook": {**SESSION, "warm": WARM["notebook"], "max": 8, "claim": {"lease": "30s"}, "park": {"ttl": "5s"}},
}


@pytest.mark.timeout(SECONDS + 2 * SETTLE + 120)
def test_everything_adds_up_after_random_faults(make_fleet: Callable[..., Fleet]) -> None:
    seed = int(os.environ.get("HOLDFAST_SOAK_SEED", "0")) or random.randrange(1, 2**31)
    print(f"seed {seed}, {SECONDS:.0f} s: HOLDFAST_SOAK_SEED={seed} HOLDFAST_SOAK_SECONDS={SECONDS:.0f} pytest -s tests/soak")
    fleet = make_fleet(replicas=3, pools=POOLS)
    fleet.warm(sum(WARM.values()), 60)
    faults = Faults(fleet, random.Random(seed))
    work: Work | None = None
    try:
        work = asyncio.run(soak(fleet, faults, random.Random(seed + 1)))
        check_jobs(fleet, work, faults)
        check_sessions(fleet, work, faults)
        check_claims(fleet)
        eventually(lambda: nothing_leaks(fleet), SETTLE, "nothing leaks")
        fleet.check_promises()
    except BaseException:
        print_faults(fleet, faults, seed)
        raise
    print(
        f"{len(work.jobs)} jobs, {work.sessions} sessions, {len(faults.injected)} faults, "
        f"{len(faults.killed_workers)} workers killed"
    )


async def soak(fleet: Fleet, faults: Faults, chance: random.Random) -> Work:
    work = Work([f"http://127.0.0.1:{port}" for port in fleet.ports], fleet.token, fleet.home, chance)
    breaking = threading.Thread(target=faults.run, args=(SECONDS,), daemon=True)
    breaking.start()
    work.start()
    try:
        await asyncio.to_thread(breaking.join)
    finally:
        faults.stop()
        await asyncio.to_thread(breaking.join)
        await asyncio.to_thread(faults.heal)
        await work.finish(SETTLE)
    return work


def check_jobs(fleet: Fleet, work: Work, faults: Faults) -> None:
    """Every job must have run exactly once. A job with `retry: lost` must have run at least once and at most three times."""
    begun, done = work.begun(), work.done()
    hit = claims_on(fleet, faults.killed_workers)
    wrong = [f"{job.key}: {problem}" for job in work.jobs if (problem := complaint(job, begun, done, hit))]
    assert not wrong, "\n".join(wrong)
    unknown = begun.keys() - {job.claim.id for job in work.jobs if job.claim}
    assert not unknown, f"ran without having been asked for: {unknown}"


def complaint(job: Job, begun: dict[str, int], done: dict[str, int], hit: set[str]) -> str:
    if job.error or job.claim is None or not job.claim.ended:
        return job.error or f"did not end: {job.claim}"
    claim, runs, ends = job.claim, begun[job.claim.id], done[job.claim.id]
    ran = f"{claim.id} is {claim.outcome} ({claim.reason}), began {runs} times and ended {ends} times"
    if job.retry:
        fine = runs <= 3 and (ends >= 1 if claim.outcome == "completed" else claim.outcome == "lost" and claim.id in hit)
    elif claim.id in hit:  # its worker was free when the fault chose it, and was given out just before the kill
        fine = runs <= 1 and claim.outcome in ("completed", "lost")
    else:
        fine = (runs, ends, claim.outcome) == (1, 1, "completed")
    return "" if fine else ran


def check_sessions(fleet: Fleet, work: Work, faults: Faults) -> None:
    """A session must be ended by its holder only, unless its worker was killed."""
    broken = [each for each in work.broken if each.worker not in faults.killed_workers]
    assert not broken, broken
    hit = claims_on(fleet, faults.killed_workers)
    ended = fleet.sql(
        "SELECT c.id, c.outcome, c.reason FROM holdfast.claim c JOIN holdfast.pool p ON p.id = c.pool_id"
        " WHERE p.name = 'notebook' AND c.outcome NOT IN ('released', 'cancelled')"
    )
    # If no replica can store a release within 10 s, the claim ends with its lease. The SDK documents this.
    odd = [row for row in ended if row["id"] not in hit and row["outcome"] != "expired"]
    assert not odd, odd


def check_claims(fleet: Fleet) -> None:
    """Checks P8: each claim was served, or refused with a reason. No claim is left."""
    open_or_mute = "SELECT id, state, outcome, reason FROM holdfast.claim WHERE state <> 'ended' OR reason = ''"
    eventually(lambda: not fleet.sql(open_or_mute), SETTLE, "every claim ended, with a reason")


def nothing_leaks(fleet: Fleet) -> bool:
    found = leaks(fleet)
    assert not found, found
    return True


def leaks(fleet: Fleet) -> list[str]:
    """Returns what was leaked (P5): rows, processes, and marks on pods."""
    rows = {row["id"]: row for row in fleet.sql("SELECT id, state, ready FROM holdfast.worker WHERE state <> 'gone'")}
    running = machine.workers(fleet.home)
    found = [f"{name} runs without a row" for name in running.keys() - rows.keys()]
    found += [f"{name} is {rows[name]['state']} without a process" for name in rows.keys() - running.keys()]
    found += [f"{name} is {row['state']}" for name, row in rows.items() if row["state"] not in ("warm", "parked")]
    for pool, wanted in WARM.items():
        warm = sum(row["state"] == "warm" and row["ready"] and name.startswith(f"w-{pool}-") for name, row in rows.items())
        found += [f"{pool} has {warm} of {wanted} warm workers"] if warm < wanted else []
    for pod in asyncio.run(pods(fleet)):
        if pod.phase != "ended" and (pod.stamp is not None or pod.protected):
            found.append(f"{pod.name} is free and carries {pod.stamp}, protected: {pod.protected}")
    return found


async def pods(fleet: Fleet) -> list[Any]:
    cluster = local_cluster(fleet.layout)
    try:
        return list(await cluster.pods())
    finally:
        await cluster.close()


def claims_on(fleet: Fleet, workers: set[str]) -> set[str]:
    """Returns the claims that were ever assigned to one of these workers."""
    events = "SELECT DISTINCT claim_id FROM holdfast.event WHERE claim_id IS NOT NULL AND worker_id = ANY($1::text[])"
    return {row["claim_id"] for row in fleet.sql(events, list(workers))}


def print_faults(fleet: Fleet, faults: Faults, seed: int) -> None:
    print(f"\nseed {seed} failed. What was done:", *faults.injected, sep="\n  ")
    try:
        print("what leaks:", *leaks(fleet), sep="\n  ")
        events = fleet.sql("SELECT at, kind, claim_id, worker_id, reason, also FROM holdfast.event ORDER BY id DESC LIMIT 80")
        print(
            "the last events:", *(" ".join(str(value or "-") for value in event.values()) for event in events[::-1]), sep="\n  "
        )
    except Exception as error:  # an error in the report must not hide the failure itself
        print(f"no events: {error!r}")
    print("the end of the replicas' log:", *fleet.log.read_text().splitlines()[-40:], sep="\n  ")
