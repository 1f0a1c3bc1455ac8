"""Rows of the failure table on a real API server: pods that the database does not know, or does not know any more."""

from datetime import datetime
from pathlib import Path
from typing import Any

from fleet_probes import metric, worker
from kube_fleet import KubeFleet, Made
from pod_marks import FREE_MARKS, busy_marks, marks, write
from pool_specs import Gate, get, jobs, sessions

from cluster_pods import container_status
from holdfast.kubernetes import names
from holdfast.model.claim import epoch_of
from waiting import eventually

SLACK = 25.0  # seconds in addition to the limits of the failure table, because kubelets are slow on a busy machine
GRACE = 45.0  # seconds; the row of a younger pod may not be stored yet
QUARANTINED = "holdfast_quarantined_total"
SUSPECTS = "holdfast_workers_suspect"
NO_SERVER = "http://127.0.0.1:9"
AHEAD = 32  # how far a sequence may be ahead of its last value after a crash


def test_a_pod_without_a_row_is_deleted_after_its_grace_but_not_if_it_is_busy_or_of_another_epoch(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"linux": jobs(warm=2), "notebook": sessions()})
    past = fleet.see(fleet.claim("linux", tenant="acme", command=["true"])["id"], wait="60s")
    fleet.warm(3, within=90)
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    assert (past["outcome"], held["state"]) == ("completed", "active"), fleet.last_log()
    known = next(each["id"] for each in fleet.workers("warm") if each["pool"] == "linux")
    copy(fleet, known, "w-linux-idle")
    copy(fleet, known, "w-linux-stamped", busy_marks(past))
    copy(fleet, known, "w-linux-old", {names.EPOCH: "0"}, servers=NO_SERVER)  # so that its agent cannot report that it is free
    _forget_session(fleet, held)
    fleet.sql("DELETE FROM holdfast.worker WHERE id = $1", known)
    idle, stay = ("w-linux-idle", known), ("w-linux-stamped", "w-linux-old", held["worker"])
    copies = ("w-linux-idle", "w-linux-stamped", "w-linux-old")
    eventually(
        lambda: all("running" in container_status(shown(fleet, name), names.AGENT)["state"] for name in copies), 40, "they run"
    )
    uids = {name: shown(fleet, name)["metadata"]["uid"] for name in stay}
    fleet.kubelet.pause()  # so that pods that are being deleted can be read
    eventually(lambda: all_terminating(fleet, idle), 60 + SLACK, "the idle ones get SIGTERM")
    assert GRACE - 2 <= lived(fleet, "w-linux-idle") <= 60 + SLACK, "its row might have been on its way"
    eventually(lambda: all(quarantined(fleet, name) for name in stay), 60 + SLACK, "the others are quarantined")
    assert metric(fleet, QUARANTINED) >= len(stay)
    fleet.kubelet.resume()
    eventually(lambda: not any(fleet.pod(name) for name in idle), 30 + SLACK, "nothing of them is left")
    _another_pass(fleet)
    assert {name: shown(fleet, name)["metadata"]["uid"] for name in stay} == uids
    assert not any(ending(fleet, name) for name in stay), "a person decides"
    assert marks(fleet.pod("w-linux-stamped")) == busy_marks(past)
    assert get(held["endpoint"], held["credential"]) == 200, "a session that only its agent knows of goes on"
    assert not any(quarantined(fleet, name) for name in idle)
    fleet.warm(3, within=90)
    ended = fleet.sql("SELECT id, count(*) AS n FROM holdfast.ending WHERE kind = 'worker' GROUP BY id")
    assert {row["id"]: row["n"] for row in ended} == dict.fromkeys(idle, 1), "once each, however long it took: the brake counts"


def copy(fleet: KubeFleet, of: str, name: str, more: dict[str, str | None] | None = None, servers: str | None = None) -> None:
    """Makes a pod as of a replica that died before its row was durable, or whose row was lost."""
    pod = shown(fleet, of)
    keep = {key: pod["metadata"][key] for key in ("labels", "annotations", "finalizers", "ownerReferences")}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    for variable in spec["initContainers"][-1]["env"]:
        if servers is not None and variable["name"] == "HOLDFAST_SERVERS":
            variable["value"] = servers
    keep["labels"] |= {names.WORKER: name}
    labels = {key: value for key, value in (more or {}).items() if key.startswith(names.DOMAIN)}
    keep["annotations"] |= {key: value for key, value in (more or {}).items() if key not in labels}
    keep["labels"] |= labels
    fleet.access.ask("POST", fleet.pods_path, {"metadata": {"name": name, **keep}, "spec": spec})


def _forget_session(fleet: KubeFleet, held: dict[str, Any]) -> None:
    """Removes the row and the stamp, so that only the agent's report is left."""
    reported_claim = "SELECT 1 FROM holdfast.heartbeat WHERE worker_id = $1 AND claim_id IS NOT NULL"
    eventually(lambda: fleet.sql(reported_claim, held["worker"]), 20, "its agent's report is stored")
    fleet.sql("DELETE FROM holdfast.worker WHERE id = $1", held["worker"])
    fleet.sql("DELETE FROM holdfast.claim WHERE id = $1", held["id"])
    write(fleet, held["worker"], FREE_MARKS | {names.STAMPED_AT: None})


def _another_pass(fleet: KubeFleet) -> None:
    passed = "SELECT success_at FROM holdfast.term WHERE duty = 'converge'"
    before = fleet.sql(passed)
    eventually(lambda: fleet.sql(passed) != before, 60, "converge looks again")


def shown(fleet: KubeFleet, name: str) -> dict[str, Any]:
    pod = fleet.pod(name)
    assert pod is not None, f"{name} is gone"
    return pod


def ending(fleet: KubeFleet, name: str) -> bool:
    return "deletionTimestamp" in shown(fleet, name)["metadata"]


def all_terminating(fleet: KubeFleet, pods: tuple[str, ...]) -> bool:
    braked = fleet.sql("SELECT brake_reason FROM holdfast.installation WHERE brake_tripped_at IS NOT NULL")
    assert not braked, braked
    return all(ending(fleet, name) for name in pods)


def lived(fleet: KubeFleet, name: str) -> float:
    """Returns for how many seconds the pod lived until it was deleted."""
    meta = shown(fleet, name)["metadata"]
    born, over = (datetime.fromisoformat(meta[key]).timestamp() for key in ("creationTimestamp", "deletionTimestamp"))
    return over - float(meta["deletionGracePeriodSeconds"]) - born


def quarantined(fleet: KubeFleet, pod: str) -> bool:
    return bool(fleet.sql("SELECT 1 FROM holdfast.event WHERE kind = 'pod.quarantined' AND worker_id = $1", pod))


def test_a_restored_database_is_noticed_by_the_mark_alone_and_a_pod_that_it_does_not_know_is_adopted(
    fleet_of: Made, tmp_path: Path
) -> None:
    """No replica remembers lost commits, no fence is ahead, and the agent has left. Only the mark in a ConfigMap shows it."""
    fleet, gate = fleet_of(pools={"linux": jobs(warm=0), "idle": jobs(warm=1)}), Gate(tmp_path)
    free = fleet.warm(1, within=90)[0]
    backup = fleet.home / "backup"
    fleet.postgres.base_backup(backup)
    job = fleet.claim("linux", tenant="acme", command=gate.job(7), wait="60s")
    assert job["state"] == "active", fleet.last_log()
    eventually(lambda: gate.ran == 1, 30, "it runs")
    uid = shown(fleet, job["worker"])["metadata"]["uid"]
    _restore(fleet, backup, job)
    kept = mark(fleet)
    for n in range(2):
        fleet.start(n)
    state = eventually(lambda: (i := installation(fleet))["recoveries"] and i, 30 + SLACK, "the loss is noticed")
    assert f"mark {kept['mark']} of epoch 1 was seen" in state["recovery_reason"]
    eventually(lambda: installation(fleet)["recovering_since"] is None, 60 + SLACK, "recovery ends")
    state = installation(fleet)
    assert (state["epoch"], state["recoveries"]) == (2, 1)
    adopted = fleet.see(job["id"])
    shows = ("state", "worker", "fence", "tenant")
    assert [adopted[key] for key in shows] == [job[key] for key in shows], "adopted, as it was"
    pod = shown(fleet, job["worker"])
    assert (pod["metadata"]["uid"], marks(pod), ending(fleet, job["worker"])) == (uid, busy_marks(job), False), "and not reaped"
    assert worker(fleet, free["id"])["uid"] == free["uid"]
    # Decision 0015: the agent has left its job, so its silence must not alert a person.
    eventually(lambda: metric(fleet, SUSPECTS) == 0, 15 + SLACK, "no worker is suspect")
    gate.open()
    ended = fleet.see(job["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], gate.ran) == ("failed", 7, 1), fleet.last_log()
    new = fleet.claim("idle", command=["true"], wait="60s")
    assert (epoch_of(new["fence"]), fleet.see(new["id"], wait="60s")["outcome"]) == (2, "completed"), "fences only grow"
    assert (mark(fleet)["epoch"], mark(fleet)["mark"] > kept["mark"]) == (2, True)
    fleet.check_promises()


def _restore(fleet: KubeFleet, backup: Path, job: dict[str, Any]) -> None:
    """Restores older files, which keep the server's identity and timeline. No replica is left that saw the lost commits."""
    identity = "SELECT system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline FROM pg_control_system()"
    before = fleet.sql(identity)
    for n in range(2):
        fleet.kill(n)
    fleet.postgres.stop()
    fleet.postgres.restore(backup)
    fleet.postgres.start()
    fleet.sql(f"SELECT setval('holdfast.fence', last_value + {AHEAD}) FROM holdfast.fence")
    assert not fleet.sql("SELECT 1 FROM holdfast.worker WHERE id = $1", job["worker"])
    assert fleet.sql("SELECT (1::bigint << 40) + last_value AS last FROM holdfast.fence")[0]["last"] > job["fence"]
    assert fleet.sql(identity) == before
    assert fleet.sql("SELECT mark FROM holdfast.hearing")[0]["mark"] < mark(fleet)["mark"]


def mark(fleet: KubeFleet) -> dict[str, int]:
    """Returns the mark that is stored outside of the database."""
    path = f"/api/v1/namespaces/{fleet.namespace}/configmaps/holdfast-{fleet.install}-mark"
    data = fleet.access.ask("GET", path)["data"]
    return {key: int(data[key]) for key in ("mark", "epoch")}


def installation(fleet: KubeFleet) -> dict[str, Any]:
    return fleet.sql("SELECT epoch, recoveries, recovering_since, recovery_reason FROM holdfast.installation")[0]
