"""Folders and lists: a pod that cannot be read is never treated as absent, and a thousand pods are listed quickly."""

import asyncio
import json
import os
import subprocess
import threading
import time

import pytest
from local_stage import LocalStage, pool

from contracts.cluster import running, stamp
from holdfast.local import cluster as local_cluster
from holdfast.local.folder import Folder
from holdfast.local.process import BOOT, look
from holdfast.local.survey import MARKER
from holdfast.model.pool import HeadroomSpec, NetworkSpec, Pool, PoolSpec, WorkerSpec
from holdfast.ports.cluster import Cluster, ClusterUnavailable, Refused
from holdfast.ports.recovery import Remembered
from waiting import Deadline


async def test_a_root_that_cannot_be_listed_is_not_an_empty_one(cluster: Cluster, stage: LocalStage) -> None:
    assert await cluster.pods() == []
    stage.root.rename(stage.home / "elsewhere")
    for call in (cluster.pods(), cluster.read("w-1"), cluster.create(stage.order("w-1"))):
        with pytest.raises(ClusterUnavailable):
            await call
    stage.root.mkdir()  # the empty mount point of an unmounted disk
    with pytest.raises(ClusterUnavailable, match="another folder"):
        await cluster.pods()
    with pytest.raises(ClusterUnavailable, match="another folder"):
        await cluster.read("w-1")
    with pytest.raises(ClusterUnavailable, match="another folder"):
        await cluster.delete("w-1", "uid", 0)


async def test_a_root_without_its_marker_proves_nothing_though_a_worker_of_ours_lies_in_it(
    cluster: Cluster, stage: LocalStage
) -> None:
    pod = await running(cluster, stage.order("w-1"))
    await cluster.remember(Remembered("one", 1, 1))  # it has worked for long, so the root is not marked again
    (stage.root / MARKER).unlink()
    for view in (cluster, stage.open()):
        for call in (view.pods(), view.read("w-1"), view.read("w-2"), view.delete("w-1", pod.uid, 0)):
            with pytest.raises(ClusterUnavailable, match="not the folder of this installation's workers"):
                await call
    (stage.root / MARKER).touch()
    assert await cluster.pods() == [pod], "and no pod was ended meanwhile"


async def test_a_root_that_moves_away_during_a_read_hides_no_pod(cluster: Cluster, stage: LocalStage) -> None:
    for number in range(8):
        await running(cluster, stage.order(f"w-{number}"))
    away, stop = stage.home / "elsewhere", threading.Event()

    def shove() -> None:
        while not stop.is_set():
            stage.root.rename(away)
            away.rename(stage.root)

    mover = threading.Thread(target=shove)
    mover.start()
    seen = {"whole": 0, "unavailable": 0}
    try:
        while min(seen.values()) < 200:
            try:
                assert len(await cluster.pods()) == 8
                assert await cluster.read("w-3") is not None
                seen["whole"] += 1
            except ClusterUnavailable:
                seen["unavailable"] += 1
    finally:
        stop.set()
        mover.join()


async def test_one_damaged_file_makes_the_list_unavailable_not_shorter(cluster: Cluster, stage: LocalStage) -> None:
    await running(cluster, stage.order("w-1"))
    (stage.root / "w-1" / "stamp.json").write_text("{")
    with pytest.raises(ClusterUnavailable, match=r"stamp\.json is damaged"):
        await stage.open().pods()
    (stage.root / "w-1" / "stamp.json").unlink()


async def test_a_half_written_result_is_no_result(cluster: Cluster, stage: LocalStage) -> None:
    await running(cluster, stage.order_with_agent("w-1"))
    (stage.root / "w-1" / "result.json").write_text('{"claim": "c-1"')
    pod = await cluster.read("w-1")
    assert pod is not None
    assert pod.exit_code is None


async def test_a_protect_held_up_by_another_writer_gives_up_within_a_second(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1"))
    with Folder(stage.root / "w-1").locked():
        deadline = Deadline(1.0)
        with pytest.raises(ClusterUnavailable, match="locked by another process"):
            await cluster.protect("w-1", pod.uid, stamp())
        assert not deadline.over()
    assert await cluster.protect("w-1", pod.uid, stamp()) is not None


async def test_a_name_that_is_a_path_is_refused(cluster: Cluster, stage: LocalStage) -> None:
    for name in ("../w", ".new-x", "a/b", ""):
        assert isinstance(await cluster.create(stage.order(name)), Refused)
        assert await cluster.read(name) is None
        await cluster.delete(name, "uid", 0)


async def test_a_program_that_is_not_there_is_refused_with_its_name(cluster: Cluster, stage: LocalStage) -> None:
    refused = await cluster.create(stage.order("w-1", ["no-such-program"]))
    assert isinstance(refused, Refused)
    assert "no-such-program" in refused.reason


async def test_a_young_output_is_not_pruned_though_it_is_not_listed(cluster: Cluster, stage: LocalStage) -> None:
    (stage.output / "c-new").write_bytes(b"x")
    assert await cluster.prune_output(set()) == 0
    assert (stage.output / "c-new").exists()


async def test_what_a_dead_creator_left_half_made_is_swept_and_never_listed(cluster: Cluster, stage: LocalStage) -> None:
    old, young = stage.root / ".new-old", stage.root / ".gone-young"
    (old / "work").mkdir(parents=True, mode=0o700)
    (old / "work").chmod(0)
    young.mkdir()
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    assert await cluster.pods() == []
    await cluster.prune_output(set())
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        (PoolSpec(worker=WorkerSpec(run=["true"])), []),
        (PoolSpec(mode="session"), ["worker.serve"]),
        (PoolSpec(pod={"spec": {}}), ["pod"]),
        (PoolSpec(headroom=HeadroomSpec(mode="constant", slots=1)), ["headroom.mode"]),
        (PoolSpec(network=NetworkSpec(seal=True, egress=[{}])), ["network.seal", "network.egress"]),
        (PoolSpec(worker=WorkerSpec(agent=False)), ["worker.run"]),
        (PoolSpec(worker=WorkerSpec(agent=False, run=["no-such-program"])), ["worker.run"]),
    ],
)
async def test_settings_that_one_machine_cannot_serve_are_refused_by_field(
    cluster: Cluster, stage: LocalStage, spec: PoolSpec, fields: list[str]
) -> None:
    asked = Pool(id="p", name="p", spec=spec, revision="r", state="live", source="api", created_at=0.0)
    assert [problem.field for problem in await cluster.check(asked)] == fields


@pytest.mark.parametrize(("reason", "fields"), [("", []), ("the kernel forbids it", ["worker.listen"])])
async def test_a_pool_whose_processes_cannot_be_isolated_here_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, reason: str, fields: list[str]
) -> None:
    monkeypatch.setattr(local_cluster, "no_namespaces", lambda: reason)
    spec = PoolSpec(mode="session", worker=WorkerSpec(serve=["true"], listen="isolated"))
    asked = Pool(id="p", name="p", spec=spec, revision="r", state="live", source="api", created_at=0.0)
    found = await cluster.check(asked)
    assert [problem.field for problem in found] == fields
    assert all(reason in problem.reason for problem in found)


async def test_a_change_is_seen_however_coarse_the_clock_of_the_disk(cluster: Cluster, stage: LocalStage) -> None:
    """The time of a folder is trusted only after a while, because a second change within the same tick does not change it."""

    pod = await running(cluster, stage.order("w-1"))
    await cluster.pods()
    tick = os.stat(stage.root / "w-1").st_mtime_ns
    await stage.open().protect("w-1", pod.uid, stamp())
    os.utime(stage.root / "w-1", ns=(tick, tick))
    [seen] = await cluster.pods()
    assert seen.protected


async def test_a_settled_pod_is_listed_without_opening_its_files(
    cluster: Cluster, stage: LocalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await running(cluster, stage.order("w-1"))
    os.utime(stage.root / "w-1", (time.time() - 60, time.time() - 60))
    assert await cluster.pods() == [pod]
    with monkeypatch.context() as closed:
        closed.setattr(Folder, "facts", None)
        assert await cluster.pods() == [pod]
    stamped = await stage.open().protect("w-1", pod.uid, stamp())
    assert await cluster.pods() == [stamped]


async def test_a_thousand_pods_are_quick_to_list(cluster: Cluster, stage: LocalStage) -> None:
    """This limit is several times the normal duration. It catches accidental quadratic costs."""
    stand_in = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    seen = look(stand_in.pid)
    assert seen is not None
    process = {"pid": seen.process.pid, "started": seen.process.started}

    try:
        order = stage.order("w").pool
        for number in range(1000):
            folder = stage.root / f"w-{number}"
            folder.mkdir()
            files = {
                "order.json": {
                    "worker": folder.name,
                    "uid": folder.name,
                    "install": "one",
                    "pool_id": order.id,
                    "pool": order.name,
                    "revision": order.revision,
                    "epoch": 1,
                    "created_at": 0.0,
                    "agent": True,
                    "boot": BOOT,
                },
                "pod.json": process,
                "agent.json": process,
                "stamp.json": {"version": 1, "stamp": None, "protected": False},
            }
            for name, value in files.items():
                (folder / name).write_text(json.dumps(value))
            os.utime(folder, (time.time() - 60, time.time() - 60))
        assert len(await cluster.pods()) == 1000
        times = []
        for _ in range(4):
            begun = time.process_time()  # CPU time of this process only, so that other load does not count
            assert len(await cluster.pods()) == 1000
            times.append(time.process_time() - begun)
        assert min(times) < 0.5, times
    finally:
        stand_in.kill()
        stand_in.wait()


def test_the_pool_of_a_test_is_one_that_the_cluster_takes(stage: LocalStage) -> None:
    assert asyncio.run(stage.open().check(pool(WorkerSpec(run=["true"], agent=False)))) == []
