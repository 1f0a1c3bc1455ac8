"""The faults of a soak: replicas, free workers, workers of jobs that may run again, and Postgres. A seed fixes their order."""

import contextlib
import random
import signal
import threading
import time

import asyncpg

from fleet import Fleet
from holdfast.local.process import send

HELD_RETRY = """
SELECT c.worker_id FROM holdfast.claim c WHERE c.state = 'active' AND c.retry = 'lost' AND c.losses < 2 ORDER BY c.id
"""
FREE = "SELECT id FROM holdfast.worker WHERE state IN ('warm', 'parked') ORDER BY created_at DESC, id"


class Faults:
    """Injects one fault after the other from its own thread. `injected` lists them for the reader of a failed test."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self._fleet, self._chance = fleet, chance
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self.injected: list[str] = []
        self.killed_workers: set[str] = set()

    def run(self, seconds: float) -> None:
        kinds = [self.kill_replica, self.pause_replica, self.kill_free_worker, self.kill_retried_worker, self.stop_postgres]
        weights = [4, 3, 4, 5, 2]
        while time.monotonic() - self._begun < seconds and not self._stop.wait(self._chance.uniform(0.3, 3.0)):
            fault = self._chance.choices(kinds, weights)[0]
            # An earlier fault may have removed the target of this one. Then this fault is skipped.
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, StopIteration):
                fault()

    def stop(self) -> None:
        self._stop.set()

    def kill_replica(self) -> None:
        n, away = self._chance.randrange(len(self._fleet.ports)), self._chance.uniform(0.0, 6.0)
        self._tell(f"replica {n} is killed for {away:.1f} s")
        self._fleet.kill(n)
        self._stop.wait(away)
        self._fleet.start(n)

    def pause_replica(self) -> None:
        n, away = self._chance.randrange(len(self._fleet.ports)), self._chance.uniform(1.0, 14.0)
        self._tell(f"replica {n} stands still for {away:.1f} s")
        self._fleet.signal(n, signal.SIGSTOP)
        try:
            self._stop.wait(away)
        finally:
            self._fleet.signal(n, signal.SIGCONT)

    def kill_free_worker(self) -> None:
        # Kills the newest worker. The oldest is given out next, and may be given out between this query and the kill.
        found = self._fleet.sql(FREE)
        if found:
            self._kill_worker(found[0]["id"], "a free worker")

    def kill_retried_worker(self) -> None:
        found = self._fleet.sql(HELD_RETRY)
        if found:
            self._kill_worker(self._chance.choice(found)["worker_id"], "the worker of a job with retry: lost")

    def stop_postgres(self) -> None:
        away, crash = self._chance.uniform(0.0, 8.0), self._chance.random() < 0.5
        self._tell(f"Postgres {'crashes' if crash else 'is stopped'} for {away:.1f} s")
        (self._fleet.postgres.kill if crash else self._fleet.postgres.stop)()
        self._stop.wait(away)
        self._fleet.postgres.start()

    def heal(self) -> None:
        self._tell("everything is healed")
        self._fleet.postgres.start()
        for n, replica in self._fleet.replicas.items():
            if replica.poll() is None:
                self._fleet.signal(n, signal.SIGCONT)
            else:
                self._fleet.start(n)

    def _kill_worker(self, worker: str, what: str) -> None:
        self._tell(f"{worker}, {what}, is killed")
        self.killed_workers.add(worker)
        for process in self._fleet.processes(worker):
            send(process, signal.SIGKILL)

    def _tell(self, what: str) -> None:
        self.injected.append(f"{time.monotonic() - self._begun:6.1f} s  {what}")
