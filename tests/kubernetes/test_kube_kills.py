"""Replicas are killed fifty times between claim, stamp, hand-over and release. P1 to P5 hold on API server and database."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from holders_and_watcher import Holders, Sitters, age, one_at_a_time, one_tenant_each, ready, watched
from kube_fleet import KubeFleet, Made, job
from pod_marks import FREE_MARKS, marks
from pool_specs import sessions
from steady_load import sound

from holdfast.kubernetes import names
from holdfast.kubernetes.cluster import KEEP_OUTPUT
from waiting import eventually

ROUNDS, KILLS = 5, 10
A_ROUND = 8  # claims that must have ended in each round
WARM, SEATS = 5, 2
HAND_OVER = 0.3  # seconds; claim, stamp, hand-over and acknowledgement take less on an idle machine
RELEASE = 0.02  # seconds, for a release
OF_POOL = "SELECT c.* FROM holdfast.claim c JOIN holdfast.pool p ON p.id = c.pool_id WHERE p.name = $1"
OVER = ("Succeeded", "Failed")


@pytest.mark.timeout(600)
def test_replicas_killed_fifty_times_at_random_moments_lose_double_and_leak_nothing(fleet_of: Made, tmp_path: Path) -> None:
    pools = {"linux": job(warm=WARM, max=15), "notebook": sessions(warm=SEATS, max=8, park={"ttl": "5s"})}
    fleet = fleet_of(pools=pools, replicas=3)
    fleet.warm(WARM + SEATS, within=90)
    seats = Sitters(fleet, "notebook", ("globex", "initech"))
    with watched(fleet) as looks, Holders(fleet, "linux", tmp_path) as holders, seats as sitters:
        eventually(lambda: ended(fleet) >= 3, 60, "claims flow")
        hit = kill_again_and_again(fleet, holders, sitters)
        before = ended(fleet)
        eventually(lambda: ended(fleet) > before + 3, 90, "claims flow again")
    print(f"{len(holders.ids)} jobs, {len(sitters.ids)} sessions, {looks()} looks at held pods, in the way of {dict(hit)}")
    assert looks() > 100, "P3 was looked at"
    assert hit["assigned"] >= 5, f"the kills did not come between claim and hand-over: {hit}"
    assert hit["active"] >= 5, f"the kills did not come between hand-over and release: {hit}"
    assert hit["release"] >= 5, f"the kills did not come while a release was under way: {hit}"
    each_ran_once(fleet, holders)
    each_was_given_back(fleet, sitters)
    one_at_a_time(fleet)
    one_tenant_each(fleet)
    eventually(lambda: nothing_leaks(fleet), 120, "pods and rows add up")
    sound(fleet)


def kill_again_and_again(fleet: KubeFleet, holders: Holders, sitters: Sitters) -> Counter[str]:
    """Kills one serving replica at a time, never the last one, just after it received a claim or a release. Returns how often it
    was in which step, by the states of claims.
    """
    dice, hit = random.Random(4), Counter[str]()
    for _ in range(ROUNDS):
        before = ended(fleet)
        for n in range(KILLS):
            able = eventually(lambda: warm(fleet) and serving(fleet), 60, "a worker to give out, and two replicas that serve")
            victim = dice.choice(able)
            if n % 3 == 2:
                sitters.leave(victim)
                time.sleep(dice.uniform(0, RELEASE))  # a random delay chooses the moment of the fault
                hit["release"] += bool(sitters.leaving)
            else:
                holders.ask(victim)
                time.sleep(dice.uniform(0, HAND_OVER))  # a random delay chooses the moment of the fault
            fleet.kill(victim)
            hit.update(row["state"] for row in fleet.sql("SELECT state FROM holdfast.claim WHERE state <> 'ended'"))
            fleet.start(victim)
        eventually(lambda before=before: ended(fleet) >= before + A_ROUND, 120, f"{A_ROUND} claims of this round have ended")
    return hit


def serving(fleet: KubeFleet) -> list[int]:
    able = [n for n in fleet.replicas if ready(fleet, n)]
    return able if len(able) >= 2 else []


def warm(fleet: KubeFleet) -> list[Any]:
    return fleet.sql("SELECT id FROM holdfast.worker WHERE state = 'warm' AND ready")


def ended(fleet: KubeFleet) -> int:
    return int(fleet.sql("SELECT count(*) AS n FROM holdfast.claim WHERE state = 'ended'")[0]["n"])


def each_ran_once(fleet: KubeFleet, holders: Holders) -> None:
    """P8: each job was served. P1 and P2: none ran twice, and Holdfast ended none."""
    assert len(set(holders.ids)) == len(holders.ids), "a key names one claim"
    for id_ in holders.ids:
        done = fleet.see(id_, wait="60s", replica=fleet.alive())
        assert (done["state"], done["outcome"], done["exit_code"]) == ("ended", "completed", 0), (done, fleet.last_log())
    assert Counter(holders.ran()) == Counter(holders.ids), "each command ran exactly once"
    asked = fleet.sql(OF_POOL, "linux")
    assert {row["id"] for row in asked} == set(holders.ids), "and nothing else was made"
    assert {row["how"] for row in asked} <= {"result", "death"}, "each by its own end"
    assert {row["retry"] for row in asked} <= {None, "never"}


def each_was_given_back(fleet: KubeFleet, sitters: Sitters) -> None:
    """P2 and P8: each session belonged to its holder until the holder released it."""
    rows = fleet.sql(OF_POOL, "notebook")
    assert {row["id"] for row in rows} == set(sitters.ids)
    assert len(set(sitters.ids)) == len(sitters.ids), "a key names one claim"
    assert {(row["outcome"], row["how"]) for row in rows} == {("released", "release")}, [dict(row) for row in rows]


def nothing_leaks(fleet: KubeFleet) -> bool:
    """P5 while the pool lives: pods and rows are the same, no worker is held, and no free pod has the marks of a holder."""
    rows = {row["id"]: row for row in fleet.sql("SELECT id, state, ready, pod_uid FROM holdfast.worker")}
    present = {id_: row for id_, row in rows.items() if row["state"] != "gone"}
    assert [(row["state"], row["ready"]) for row in present.values()] == [("warm", True)] * (WARM + SEATS), present
    pods = namespace_pods(fleet)
    living = {name: pod for name, pod in pods.items() if pod["status"].get("phase") not in OVER}
    assert {n: pod["metadata"]["uid"] for n, pod in living.items()} == {n: row["pod_uid"] for n, row in present.items()}
    assert [marks(pod) for pod in living.values()] == [FREE_MARKS] * (WARM + SEATS)
    # Ended pods are kept for a while for their output, and are known.
    for name in pods.keys() - living.keys():
        assert rows[name]["pod_uid"] == pods[name]["metadata"]["uid"]
        assert age(pods[name]["metadata"]["creationTimestamp"]) < KEEP_OUTPUT + 150, f"{name} should have gone"
    assert not fleet.sql("SELECT id FROM holdfast.claim WHERE state <> 'ended'")
    return True


def namespace_pods(fleet: KubeFleet) -> dict[str, Any]:
    """Returns all pods of the namespace, with any labels."""
    pods = fleet.access.ask("GET", fleet.pods_path)["items"]
    assert all(names.INSTALL in pod["metadata"]["labels"] for pod in pods)
    return {pod["metadata"]["name"]: pod for pod in pods}
