"""Puts load on a fleet while a test breaks something, and checks the claims afterwards."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kube_fleet import KubeFleet

from waiting import eventually


@contextmanager
def load(fleet: KubeFleet, pool: str, seconds: float = 0.2) -> Iterator[list[str]]:
    """Makes claims with keys, one after another. Each is repeated until a replica has accepted it. Yields their ids."""
    over, ids = threading.Event(), list[str]()

    def ask(n: int) -> str | None:
        body = {
            "pool": pool,
            "command": ["sh", "-c", f"sleep {seconds}; exit 0"],
            "key": f"k-{n}",
            "wait": "1s",
            "deadline": "10m",
        }
        for replica in range(len(fleet.ports)):
            try:
                answer = fleet.api("POST", "/v1/claims", body, replica=replica, timeout=10)
                if answer.status in (200, 201, 202):
                    return str(answer.json["id"])
            except OSError:
                continue
        return None

    def work() -> None:
        n = 0
        while not over.is_set():
            if (id_ := ask(n)) is not None:
                ids.append(id_)
                n += 1
            over.wait(0.3)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ids
    finally:
        over.set()
        thread.join()


def all_served(fleet: KubeFleet, ids: list[str]) -> None:
    """Fails unless every claim completed (P8), each of them once (P1)."""
    assert len(set(ids)) == len(ids)
    for id_ in ids:
        ended = fleet.see(id_, wait="180s")
        assert (ended["state"], ended["outcome"]) == ("ended", "completed"), (ended, fleet.last_log())


def sound(fleet: KubeFleet) -> None:
    def look() -> bool:
        return all(check["ok"] for check in fleet.api("GET", "/v1/doctor").json["checks"])

    eventually(look, 60, "doctor finds every promise kept")
