"""Pools that are deleted, created again, rolled out, frozen and refused."""

from collections.abc import Callable

from fleet import JOB, Fleet, eventually

Make = Callable[..., Fleet]


def test_a_deleted_pool_lets_busy_workers_finish_and_its_name_is_free_at_once(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}})
    fleet.warm(2)
    old = fleet.api("GET", "/v1/pools/linux").json
    claim = fleet.claim("linux", command=["sh", "-c", "sleep 8; echo finished"], wait="30s")
    free = fleet.warm(1)[0]["id"]
    assert fleet.api("DELETE", "/v1/pools/linux").json["state"] == "draining"
    again = fleet.api("PUT", "/v1/pools/linux", JOB)
    assert (again.status, again.json["id"] != old["id"]) == (201, True)
    eventually(lambda: fleet.api("GET", f"/v1/workers/{free}").json["state"] == "gone", 20, "free workers go")
    assert fleet.see(claim["id"])["state"] == "active"
    ended = fleet.see(claim["id"], wait="30s")
    assert ended["outcome"] == "completed"
    eventually(
        lambda: fleet.sql("SELECT 1 FROM holdfast.pool WHERE id = $1 AND state = 'gone'", old["id"]), 25, "the old pool is gone"
    )
    new = fleet.claim("linux", command=["true"], wait="30s")
    assert fleet.see(new["id"], wait="20s")["outcome"] == "completed"


def test_claims_that_wait_for_a_deleted_pool_are_refused_with_the_reason(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": {**JOB, "warm": 0, "max": 1}})
    busy = fleet.claim("linux", command=["sleep", "30"], wait="30s")
    assert busy["state"] == "active"
    waiting = fleet.claim("linux", command=["true"], wait="0s")
    fleet.api("DELETE", "/v1/pools/linux")
    ended = fleet.see(waiting["id"], wait="15s")
    assert ended["outcome"] == "refused"
    assert "deleted" in ended["reason"]


def test_a_rollout_replaces_free_workers_and_spares_the_busy(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}})
    fleet.warm(2)
    claim = fleet.claim("linux", command=["sh", "-c", "sleep 10; echo spared"], wait="30s")
    fleet.warm(2)
    changed = {**JOB, "warm": 2, "drain": {"grace": "59m"}}
    revision = fleet.api("PUT", "/v1/pools/linux", changed).json["revision"]
    eventually(lambda: {w["revision"] for w in fleet.workers("warm")} == {revision}, 60, "all free workers are new")
    assert fleet.see(claim["id"], wait="30s")["outcome"] == "completed"


def test_a_refused_spawn_gives_its_slot_back_and_the_pool_shows_why(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1)
    program = fleet.home / "vanishing-program"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    spec = {**JOB, "warm": 0, "max": 2, "worker": {"run": [str(program)], "agent": False}}
    assert fleet.api("PUT", "/v1/pools/broken", spec).status == 201
    program.unlink()
    fleet.claim("broken", wait="0s")
    shown = eventually(lambda: (p := fleet.api("GET", "/v1/pools/broken").json)["status"]["trouble"] and p, 20)
    assert "vanishing-program" in shown["status"]["trouble"]
    assert fleet.sql("SELECT count(*) AS n FROM holdfast.worker WHERE state <> 'gone'")[0]["n"] == 0
    sentences = fleet.api("GET", "/v1/explain/pool/broken").json["sentences"]
    assert any("vanishing-program" in sentence for sentence in sentences)


def test_a_frozen_pool_neither_spawns_nor_ends(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": {**JOB, "warm": 1}})
    worker = fleet.warm(1)[0]["id"]
    assert fleet.api("POST", "/v1/pools/linux/freeze", {"reason": "incident 7"}).json["frozen"] == "incident 7"
    retire = fleet.api("POST", f"/v1/workers/{worker}/retire", {"reason": "try"})
    assert (retire.status, retire.json["code"]) == (409, "frozen")
    claim = fleet.claim("linux", command=["true"], wait="20s")  # existing workers are still given out
    assert fleet.see(claim["id"], wait="20s")["outcome"] == "completed"
    waiting = fleet.claim("linux", command=["true"], wait="3s")
    assert (waiting["state"], "frozen" in waiting["reason"]) == ("waiting", True)
    assert fleet.sql("SELECT count(*) AS n FROM holdfast.worker WHERE state = 'spawning'")[0]["n"] == 0
    fleet.api("POST", "/v1/pools/linux/thaw", {})
    assert fleet.see(waiting["id"], wait="30s")["outcome"] == "completed"


def test_warm_workers_come_back_after_use_and_surplus_goes(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": {**JOB, "warm": 3}})
    fleet.warm(3)
    fleet.api("PUT", "/v1/pools/linux", {**JOB, "warm": 1})
    eventually(lambda: len(fleet.workers("warm")) < 3, 20, "the surplus shrinks")
    assert fleet.api("GET", "/v1/pools/linux").json["status"]["warm"] >= 1
