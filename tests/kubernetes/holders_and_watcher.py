"""Holders that always have a claim, and a watcher that compares the API server with the database while replicas are killed."""

import asyncio
import contextlib
import http.client
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
from kube_fleet import KubeFleet
from pod_marks import busy_marks, marks

UNREACHED = (OSError, http.client.HTTPException)
# Active claims whose holders were informed that their pod is protected.
ACTIVE = """
SELECT id, tenant, fence, worker_id AS worker, max_heard IS NOT NULL AS bounded FROM holdfast.claim
WHERE state = 'active' AND protected
"""
SERVED = """
SELECT e.worker_id, count(DISTINCT c.tenant) AS tenants, count(*) AS claims
FROM holdfast.event e JOIN holdfast.claim c ON c.id = e.claim_id WHERE e.kind = 'claim.active' GROUP BY e.worker_id
"""


class Askers:
    """Threads that send requests to replicas, any of which may be dead, until one of them answers."""

    def __init__(self, fleet: KubeFleet, pool: str) -> None:
        self.fleet, self.pool = fleet, pool
        self.ids: list[str] = []
        self._over = threading.Event()
        self._threads = list[threading.Thread]()
        self._dice = random.Random(7)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _begin(self, what: Callable[..., object], *args: object) -> None:
        thread = threading.Thread(target=what, args=args)
        self._threads.append(thread)
        thread.start()

    def _insist(self, body: dict[str, Any], replica: int) -> str:
        """Repeats the request until it succeeds, even after the end of the test's block, because the claim may exist already."""
        body = {"pool": self.pool, "wait": "2s", "deadline": "10m", **body}
        while not (id_ := str(self._api("POST", "/v1/claims", body, replica).get("id", ""))):
            replica = self._any()
        self.ids.append(id_)
        return id_

    def _any(self) -> int:
        return self._dice.randrange(len(self.fleet.ports))

    def _see(self, id_: str, until: str) -> dict[str, Any]:
        return self._api("GET", f"/v1/claims/{id_}?wait=2s&until={until}", None, self._any())

    def _api(self, method: str, path: str, body: Any, replica: int) -> dict[str, Any]:
        """Returns an empty object if the replica is dead, starting, or cannot serve now."""
        try:
            answer = self.fleet.api(method, path, body, replica=replica, timeout=15)
            if answer.status in (200, 201, 202):
                return dict(answer.json)
            assert answer.status in (401, 503), answer.raw  # a replica answers 401 only before it has read the tokens
        except UNREACHED:
            pass
        self._over.wait(0.05)
        return {}


class Holders(Askers):
    """Runs jobs with keys, one after another, and more on `ask`. Every run appends the id of its claim to the file `runs`."""

    def __init__(self, fleet: KubeFleet, pool: str, folder: Path) -> None:
        super().__init__(fleet, pool)
        folder.chmod(0o755)
        self.runs = folder / "runs"
        self._command = ["sh", "-c", f"echo $HOLDFAST_CLAIM >> {self.runs}; sleep 1"]

    def __enter__(self) -> "Holders":
        self._begin(self._live)
        return self

    def ask(self, replica: int) -> None:
        """Starts one more job at once, with its first request to this replica."""
        self._begin(self._want, f"sent-{len(self._threads)}", replica)

    def ran(self) -> list[str]:
        return self.runs.read_text().split() if self.runs.exists() else []

    def _live(self) -> None:
        asks = 0
        while not self._over.is_set():
            asks += 1
            id_ = self._want(f"own-{asks}", self._any())
            while not self._over.is_set() and self._see(id_, "ended").get("state") != "ended":
                pass

    def _want(self, key: str, replica: int) -> str:
        return self._insist({"tenant": "acme", "command": self._command, "key": key}, replica)


class Sitters(Askers):
    """Tenants that hold a session for a short time and release it, so that its worker is parked and held again.

    `leave` makes one of them release its session at the replica that the test is about to kill.
    """

    def __init__(self, fleet: KubeFleet, pool: str, tenants: tuple[str, ...]) -> None:
        super().__init__(fleet, pool)
        self._tenants = tenants
        self._leave: queue.Queue[tuple[int, threading.Event]] = queue.Queue()
        self.leaving: set[str] = set()  # claims whose release no replica has confirmed yet

    def __enter__(self) -> "Sitters":
        for tenant in self._tenants:
            self._begin(self._live, tenant)
        return self

    def leave(self, replica: int) -> None:
        """Makes the next tenant that holds a session release it at this replica. Returns when the release is about to be sent."""
        asked = threading.Event()
        self._leave.put((replica, asked))
        assert asked.wait(300), "no tenant holds a session"

    def _live(self, tenant: str) -> None:
        asks = 0
        while not self._over.is_set():
            asks += 1
            id_ = self._insist({"tenant": tenant, "key": f"{tenant}-{asks}"}, self._any())
            while (held := self._see(id_, "active")).get("state") != "active":
                pass
            try:
                replica, asked = self._leave.get(timeout=self._dice.uniform(0.2, 2))
            except queue.Empty:
                replica, asked = self._any(), threading.Event()
            self._give_back(held, replica, asked)

    def _give_back(self, held: dict[str, Any], replica: int, asked: threading.Event) -> None:
        path, body = f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}
        self.leaving.add(held["id"])
        asked.set()
        while self._api("POST", path, body, replica).get("state") != "ended":
            replica = self._any()
        self.leaving.discard(held["id"])


@contextmanager
def watched(fleet: KubeFleet) -> Iterator[Callable[[], int]]:
    """Checks P3 and P2 all the time: the pod of a claim that is stored as protected has its marks and is not deleted.

    A claim is compared only if the database shows it unchanged before *and* after the list of pods. Yields a function that
    returns how many held pods have been checked so far. The block fails at its end if any check failed.
    """
    over, wrong, looks = threading.Event(), list[str](), [0]

    def look() -> None:
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            connection = loop.run_until_complete(asyncpg.connect(fleet.postgres.dsn, timeout=60))
            active_claims = lambda: {row["id"]: dict(row) for row in loop.run_until_complete(connection.fetch(ACTIVE))}  # noqa: E731
            while not over.wait(0.2):
                before = active_claims()
                pods = {pod["metadata"]["name"]: pod for pod in fleet.pods()}
                after = active_claims()
                held = [claim for id_, claim in before.items() if after.get(id_) == claim]
                looks[0] += len(held)
                wrong.extend(problem for claim in held if (problem := complaint(claim, pods.get(claim["worker"]))))
            loop.run_until_complete(connection.close())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: looks[0]
    finally:
        over.set()
        thread.join()
    assert not wrong, wrong[:5]


def complaint(claim: dict[str, Any], pod: dict[str, Any] | None) -> str | None:
    if pod is None:
        return f"{claim} has no pod"
    if marks(pod) != busy_marks(claim):
        return f"{claim} has a pod with {marks(pod)}"
    if "deletionTimestamp" in pod["metadata"]:
        return f"{claim} has a pod that is being deleted"
    return None if claim["bounded"] else f"{claim} has no longest duration"


def ready(fleet: KubeFleet, n: int) -> bool:
    if fleet.replicas[n].poll() is not None:
        return False
    try:
        return fleet.api("GET", "/readyz", replica=n, timeout=5).status == 200
    except UNREACHED:
        return False


def one_at_a_time(fleet: KubeFleet) -> None:
    """Checks P1 in the history: a worker gets a new claim only after its last one has ended or was requeued."""
    kinds = ("claim.assigned", "claim.active", "claim.ended", "claim.requeued", "claim.retried")
    holder: dict[str, str | None] = {}
    active = list[str]()
    for event in fleet.sql("SELECT kind, worker_id, claim_id FROM holdfast.event WHERE kind = ANY($1) ORDER BY id", kinds):
        kind, worker, claim = event["kind"], event["worker_id"], event["claim_id"]
        if worker is None:
            continue  # the claim ended while it was waiting
        has = holder.get(worker)
        if kind == "claim.assigned":
            assert has is None, f"{worker} was given to {claim} while {has} had it"
            holder[worker] = claim
        elif kind == "claim.active":
            assert has == claim, f"{worker} became active for {claim} while {has} had it"
            active.append(claim)
        else:
            assert has == claim, f"{claim} left {worker}, which {has} had"
            holder[worker] = None
    assert active, "nothing happened"
    twice = {claim for claim in active if active.count(claim) > 1}
    assert not twice, f"became active more than once: {twice}"


def age(timestamp: str) -> float:
    """Returns the seconds since a timestamp of the API server."""
    return time.time() - datetime.fromisoformat(timestamp).timestamp()


def one_tenant_each(fleet: KubeFleet) -> None:
    """Checks P1: no worker was active for two tenants."""
    rows = fleet.sql(SERVED)
    assert {row["tenants"] for row in rows} == {1}, rows
    assert any(row["claims"] > 1 for row in rows), "some were parked, and held again"
