"""A pod whose shim is gone still runs and can still be ended. It is never confused with a foreign process."""

import json
import signal
import subprocess
import time

import pytest
from local_stage import STUBBORN, LocalStage, agent_of, dead, exists, kill, linux, noted, shim_of

from contracts.cluster import reaches, running, until
from holdfast.local.process import Process, Table, alive, kin, look, send
from holdfast.ports.cluster import Cluster


@linux
async def test_with_its_shim_killed_a_pod_still_runs_and_can_be_ended(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1"))
    child = agent_of(stage, "w-1")
    await kill(shim_of(stage, "w-1"))
    assert alive(child)
    [seen] = await cluster.pods()
    assert seen.phase == "running", "busy is sacred"
    await cluster.forget("w-1", pod.uid)
    await cluster.delete("w-1", pod.uid, 30)
    await dead(child)
    ended = await reaches(cluster, "w-1", "ended")
    assert (ended.terminating, ended.exit_code) == (True, None)


@linux
async def test_orphans_that_ignore_sigterm_are_killed_after_the_grace(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1", STUBBORN))
    await until(exists(stage.root / "w-1" / "work" / "ready"), "the trap")
    child = agent_of(stage, "w-1")
    await kill(shim_of(stage, "w-1"))
    await cluster.delete("w-1", pod.uid, 0.5)
    assert alive(child)
    await dead(child)
    await reaches(cluster, "w-1", "ended")
    await cluster.close()


@linux
async def test_a_grandchild_that_survives_shim_and_child_keeps_the_pod_running(cluster: Cluster, stage: LocalStage) -> None:
    script = "setsid sh -c 'echo $$ > work; exec sleep 1000' & wait"

    pod = await running(cluster, stage.order("w-1", ["sh", "-c", script]))
    worker = await noted(stage.root / "w-1" / "work" / "work")
    await kill(shim_of(stage, "w-1"))
    await kill(agent_of(stage, "w-1"))
    assert alive(worker)
    [seen] = await cluster.pods()
    assert seen.phase == "running"
    await cluster.delete("w-1", pod.uid, 30)
    await dead(worker)
    await reaches(cluster, "w-1", "ended")


@linux
@pytest.mark.parametrize("trace", ["payload", "groups"])
async def test_a_command_of_a_killed_agent_is_found_by_what_the_agent_left(
    cluster: Cluster, stage: LocalStage, trace: str
) -> None:
    """The command is started as an agent starts it, with its own session and environment."""
    env = 'HOLDFAST_PAYLOAD="$HOLDFAST_WORKER_DIR/payload.json"' if trace == "payload" else ""
    script = f"env -i PATH=\"$PATH\" {env} setsid sh -c 'echo $$ > pid; cd /; exec sleep 1000' & wait"

    pod = await running(cluster, stage.order("w-1", ["sh", "-c", script]))
    command = await noted(stage.root / "w-1" / "work" / "pid")
    if trace == "groups":
        (stage.root / "w-1" / "groups").write_text(f"{command.pid} {time.time():.3f}\n77")
    await kill(shim_of(stage, "w-1"))
    await kill(agent_of(stage, "w-1"))
    [seen] = await cluster.pods()
    assert seen.phase == "running", "busy is sacred"
    await cluster.delete("w-1", pod.uid, 30)
    await dead(command)
    await reaches(cluster, "w-1", "ended")


@linux
async def test_who_only_works_in_the_pods_folder_counts_as_life_but_is_not_signalled(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1"))
    person = subprocess.Popen(["sleep", "1000"], cwd=stage.root / "w-1" / "work", start_new_session=True)
    try:
        await kill(shim_of(stage, "w-1"))
        await kill(agent_of(stage, "w-1"))
        await cluster.delete("w-1", pod.uid, 0)
        [seen] = await cluster.pods()
        assert seen.phase == "running"
        assert person.poll() is None
    finally:
        person.kill()
        person.wait()
    await reaches(cluster, "w-1", "ended")


@linux
async def test_everything_killed_from_outside_is_ended_without_an_exit_code(cluster: Cluster, stage: LocalStage) -> None:
    await running(cluster, stage.order("w-1"))
    await kill(shim_of(stage, "w-1"))
    await kill(agent_of(stage, "w-1"))
    ended = await reaches(cluster, "w-1", "ended")
    assert ended.exit_code is None
    assert ended.trouble is not None


@linux
async def test_a_stopped_shim_cannot_keep_its_pod(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1"))
    child = agent_of(stage, "w-1")
    assert send(shim_of(stage, "w-1"), signal.SIGSTOP)
    await cluster.delete("w-1", pod.uid, 0)
    mark = stage.root / "w-1" / "terminating"
    mark.write_text(json.dumps({"at": time.time() - 60, "grace": 1.0}))
    await cluster.delete("w-1", pod.uid, 0)
    await dead(child)
    await reaches(cluster, "w-1", "ended")


@linux
@pytest.mark.parametrize("which", ["pod.json", "agent.json"])
async def test_a_reused_pid_is_never_signalled(cluster: Cluster, stage: LocalStage, which: str) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        pod = await running(cluster, stage.order("w-1"))
        shim, child = shim_of(stage, "w-1"), agent_of(stage, "w-1")
        await kill(shim)
        await kill(child)
        for name in {"pod.json", which}:  # the foreign process has the PID now, but another start time
            path = stage.root / "w-1" / name
            path.write_text(json.dumps({"pid": stranger.pid, "started": shim.started}))
        fresh = stage.open()
        await fresh.delete("w-1", pod.uid, 0)
        await fresh.delete("w-1", pod.uid, 0)
        assert (await reaches(fresh, "w-1", "ended")).exit_code is None
        await fresh.close()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@linux
async def test_a_pod_of_an_earlier_boot_has_ended_and_its_pids_are_left_alone(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1"))
    child = agent_of(stage, "w-1")
    path = stage.root / "w-1" / "order.json"
    order = json.loads(path.read_text())
    path.write_text(json.dumps(order | {"boot": "another"}))
    (stage.root / "w-1" / "stamp.json").write_text("")  # the file that a power cut leaves
    fresh = stage.open()
    [seen] = await fresh.pods()
    assert seen.phase == "ended"
    await fresh.delete("w-1", pod.uid, 0)
    assert not (stage.root / "w-1" / "terminating").exists()
    assert alive(child)


@linux
def test_a_member_of_the_session_without_proof_counts_as_life_but_is_not_signalled(stage: LocalStage) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    try:
        entry = look(stranger.pid)
        assert entry is not None
        table = Table()
        leader = Process(stranger.pid, entry.process.started)
        table.seen[stranger.pid + 1_000_000] = type(entry)(
            Process(stranger.pid + 1_000_000, entry.process.started), 1, stranger.pid
        )
        del table.seen[stranger.pid]
        found = kin("no such uid", leader, None, table)
        assert [p.pid for p in found.perhaps] == [stranger.pid + 1_000_000]
        assert found.sure == ()
    finally:
        stranger.kill()
        stranger.wait()
