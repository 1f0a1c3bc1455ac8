"""The rows of the failure table about workers: they die, hang, get SIGTERM, are found again or are missing."""

import asyncio
import json
import shutil
import signal
from collections.abc import Callable

from fleet import JOB, SERVE, SESSION, Fleet, eventually
from holdfast.local.process import send
from holdfast.ports.cluster import Order
from holdfast.wiring import local_cluster

Make = Callable[..., Fleet]


def kill_worker(fleet: Fleet, worker: str) -> None:
    """Kills all processes of a worker. A second read finds processes that were forked during the first."""
    looks = 0
    while looks < 2:
        left = fleet.processes(worker)
        looks = 0 if left else looks + 1
        for process in left:
            send(process, signal.SIGKILL)


def test_a_worker_that_is_gone_at_hand_over_costs_nothing_but_time(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}})
    victim = fleet.warm(2)[-1]["id"]  # the oldest is given out first
    kill_worker(fleet, victim)
    claim = fleet.claim("linux", command=["true"], wait="20s")
    ended = fleet.see(claim["id"], wait="20s")
    assert ended["outcome"] == "completed"
    assert ended["worker"] != victim


def test_a_job_whose_worker_dies_is_lost(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    claim = fleet.claim("linux", command=["sleep", "300"], wait="30s")
    kill_worker(fleet, claim["worker"])
    ended = fleet.see(claim["id"], wait="15s")
    assert (ended["state"], ended["outcome"]) == ("ended", "lost")
    ends = fleet.sql("SELECT how FROM holdfast.claim WHERE id = $1", claim["id"])
    assert ends[0]["how"] == "death"


def test_with_retry_lost_it_runs_again_twice_at_most(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}})
    fleet.warm(2)
    runs = fleet.home / "runs"
    claim = fleet.claim("linux", command=["sh", "-c", f"echo x >> {runs}; sleep 300"], retry="lost", wait="30s")
    for run in (1, 2, 3):
        active = eventually(lambda run=run: (s := fleet.see(claim["id"]))["state"] == "active" and s["attempts"] == run and s, 30)
        eventually(lambda run=run: runs.exists() and len(runs.read_text().split()) == run, 10)
        kill_worker(fleet, active["worker"])
    ended = fleet.see(claim["id"], wait="20s")
    assert (ended["outcome"], ended["attempts"]) == ("lost", 3)
    assert runs.read_text().split() == ["x", "x", "x"]


def test_an_exit_code_is_kept_when_no_replica_was_alive_to_see_it(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    started = fleet.home / "started"
    claim = fleet.claim("linux", command=["sh", "-c", f"touch {started}; sleep 4; exit 9"], wait="30s")
    eventually(started.exists, 20, "the command has started")  # so the agent knows that its acknowledgement was accepted
    fleet.kill(0)
    stored = fleet.layout.workers / claim["worker"] / "result.json"
    eventually(stored.exists, 30, "the agent stored the result")
    kill_worker(fleet, claim["worker"])  # before the agent could report
    fleet.start(0)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 20)
    ended = fleet.see(claim["id"], wait="30s")
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 9)


def test_a_busy_worker_that_is_asked_to_end_finishes_first(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    claim = fleet.claim("linux", command=["sh", "-c", "sleep 4; echo finished"], wait="30s")
    send(fleet.agent_of(claim["worker"]), signal.SIGTERM)
    ended = fleet.see(claim["id"], wait="30s")
    assert ended["outcome"] == "completed"
    assert fleet.api("GET", f"/v1/claims/{claim['id']}/output").raw == b"finished\n"


def test_a_free_worker_that_is_asked_to_end_leaves_at_once(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    worker = fleet.warm(1)[0]["id"]
    send(fleet.agent_of(worker), signal.SIGTERM)
    eventually(lambda: fleet.api("GET", f"/v1/workers/{worker}").json["state"] in ("retiring", "gone"), 10)
    eventually(lambda: not fleet.processes(worker), 10)
    assert fleet.warm(1)[0]["id"] != worker


def test_a_worker_that_is_never_ready_is_condemned_and_the_pool_shows_why(make_fleet: Make) -> None:
    never = {**SESSION, "startTimeout": "3s", "worker": {"listen": "port", "serve": ["sleep", "600"]}}
    fleet = make_fleet(replicas=1, pools={"broken": never})
    pool = eventually(
        lambda: (p := fleet.api("GET", "/v1/pools/broken").json)["status"]["trouble"] and p, 40, "the pool shows why"
    )
    assert "start timeout" in pool["status"]["trouble"]
    assert pool["status"]["backoff_until"] is not None
    eventually(lambda: fleet.sql("SELECT 1 FROM holdfast.worker WHERE state = 'gone'"), 20, "the first is gone")


def test_slow_activation_is_left_alone(make_fleet: Make) -> None:
    slow = {**SESSION, "worker": {"listen": "port", "serve": SERVE, "activate": ["sleep", "18"]}}
    fleet = make_fleet(replicas=1, pools={"slow": slow})
    claim = fleet.claim("slow", tenant="acme", wait="50s")
    assert (claim["state"], claim["attempts"]) == ("active", 1)


def test_activation_that_hangs_is_retired_and_the_claim_gets_another(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1)
    flag = fleet.home / "hung-once"
    hook = ["sh", "-c", f"test -e {flag} || {{ touch {flag}; sleep 600; }}"]
    spec = {**SESSION, "warm": 2, "worker": {"listen": "port", "serve": SERVE, "activate": hook}}
    assert fleet.api("PUT", "/v1/pools/hangs", spec).status == 201
    fleet.warm(2)
    claim = fleet.claim("hangs", tenant="acme", wait="0s")
    row = "SELECT worker_id FROM holdfast.claim WHERE id = $1"  # the API does not show the worker before the claim is active
    hung = eventually(lambda: flag.exists() and fleet.sql(row, claim["id"])[0]["worker_id"], 15, "activation hangs")
    send(fleet.agent_of(hung), signal.SIGSTOP)  # so that it sends no progress reports any more
    active = eventually(lambda: (s := fleet.see(claim["id"]))["state"] == "active" and s, 35)
    assert active["worker"] != hung
    assert active["attempts"] == 2


def test_a_silent_worker_is_suspect_and_gets_no_claim_but_lives(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    claim = fleet.claim("linux", command=["sleep", "120"], wait="30s")
    agent = fleet.agent_of(claim["worker"])
    send(agent, signal.SIGSTOP)
    suspect = eventually(
        lambda: fleet.api("GET", f"/v1/workers/{claim['worker']}").json["suspect"], 100, "the silent worker is suspect"
    )
    assert suspect
    assert fleet.see(claim["id"])["state"] == "active"  # silence ends no claim
    send(agent, signal.SIGCONT)
    eventually(lambda: not fleet.api("GET", f"/v1/workers/{claim['worker']}").json["suspect"], 60, "it has reported again")
    assert fleet.see(claim["id"])["state"] == "active"


def test_a_pod_without_a_row_is_deleted_and_a_busy_one_is_not(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    worker = fleet.warm(1)[0]["id"]
    cluster = local_cluster(fleet.layout)
    pool = msgspec_pool(fleet)
    made = asyncio.run(_create_two(cluster, pool))
    asyncio.run(cluster.close())
    stamp = {"tenant": "acme", "claim": "c-unknown", "fence": 5, "at": 0.0}
    busy, idle = made
    _stamp(fleet, busy, stamp)
    eventually(lambda: not fleet.processes(idle), 100, "the orphan is gone")
    assert fleet.processes(busy), "a stamped pod without a row is never ended"
    assert fleet.sql("SELECT 1 FROM holdfast.event WHERE kind = 'pod.quarantined' AND worker_id = $1", busy)
    assert fleet.processes(worker)


def test_a_row_without_a_pod_is_closed(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    worker = fleet.warm(1)[0]["id"]
    kill_worker(fleet, worker)
    shutil.rmtree(fleet.layout.workers / worker)
    eventually(lambda: fleet.api("GET", f"/v1/workers/{worker}").json["state"] == "gone", 90)
    fleet.warm(1)


async def _create_two(cluster: object, pool: object) -> tuple[str, str]:
    for name in ("w-linux-stranger", "w-linux-orphan"):
        await cluster.create(Order(worker=name, pool=pool, epoch=1))  # type: ignore[attr-defined, arg-type]
    return "w-linux-stranger", "w-linux-orphan"


def _stamp(fleet: Fleet, worker: str, stamp: dict[str, object]) -> None:
    cluster = local_cluster(fleet.layout)

    async def protect() -> None:
        from holdfast.model.pod import Stamp

        pod = await cluster.read(worker)
        assert pod is not None
        assert await cluster.protect(worker, pod.uid, Stamp(**stamp)) is not None  # type: ignore[arg-type]
        await cluster.close()

    asyncio.run(protect())


def msgspec_pool(fleet: Fleet) -> object:
    import msgspec

    from holdfast.model.pool import Pool, PoolSpec

    shown = fleet.api("GET", "/v1/pools/linux").json
    return Pool(
        id=shown["id"],
        name="linux",
        spec=msgspec.json.decode(json.dumps(shown["spec"]), type=PoolSpec),
        revision=shown["revision"],
        state="live",
        source="api",
        created_at=0.0,
    )
