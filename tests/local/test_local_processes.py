"""The processes of a pod survive the replica that started them. They end together, and in time."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_stage import STUBBORN, LocalStage, agent_of, dead, exists, kill, linux, noted, shim_of, written

from contracts.cluster import reaches, running, stamp, until
from holdfast.local.folder import Folder
from holdfast.local.launch import start_shim
from holdfast.local.process import alive, look, send
from holdfast.model.pod import Pod
from holdfast.ports.cluster import Cluster, Refused
from waiting import Deadline


async def test_a_pod_outlives_the_replica_that_started_it(cluster: Cluster, stage: LocalStage) -> None:
    script = f"""
import asyncio, sys, time
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
from local_stage import LocalStage
async def main():
    stage = LocalStage(Path({str(stage.home)!r}))
    print((await stage.open().create(stage.order("w-1"))).uid, flush=True)
    time.sleep(1000)
asyncio.run(main())
"""
    replica = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert replica.stdout is not None
        uid = replica.stdout.readline().strip()
    finally:
        os.killpg(replica.pid, signal.SIGKILL)  # the whole process group, as a terminal would
        replica.wait()
        assert replica.stdout is not None
        replica.stdout.close()

    pod = await reaches(cluster, "w-1", "running")
    assert pod.uid == uid
    await cluster.delete("w-1", uid, 5)
    assert (await reaches(cluster, "w-1", "ended")).exit_code == 128 + signal.SIGTERM


@linux
async def test_no_zombie_stays_with_the_replica(cluster: Cluster, stage: LocalStage) -> None:
    await running(cluster, stage.order("w-1"))
    seen = [look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    assert [s for s in seen if s is not None and s.zombie and s.parent == os.getpid()] == []


@linux
async def test_the_whole_tree_ends_with_its_pod_daemons_too(cluster: Cluster, stage: LocalStage) -> None:
    daemon = "trap '' TERM HUP; echo $$ > daemon; while :; do sleep 0.05; done"
    tree = ["sh", "-c", f'setsid sh -c "{daemon.replace("$", chr(92) + "$")}" & sleep 1000 & wait']

    pod = await running(cluster, stage.order("w-1", tree))
    stray = await noted(stage.root / "w-1" / "work" / "daemon")
    entry = look(stray.pid)
    assert entry is not None
    assert entry.session != shim_of(stage, "w-1").pid, "the daemon left the session"
    await cluster.delete("w-1", pod.uid, 30)
    await reaches(cluster, "w-1", "ended")
    assert not alive(stray)
    shim = shim_of(stage, "w-1")
    assert [process for process in stage.left() if process != shim] == []
    await dead(shim)


@linux
async def test_what_a_command_leaves_behind_ends_with_it(cluster: Cluster, stage: LocalStage) -> None:
    daemon = "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &)"
    script = f"{daemon}; while ! test -s daemon; do sleep 0.01; done; exit 3"

    assert isinstance(await cluster.create(stage.order("w-1", ["sh", "-c", script])), Pod)
    pod = await reaches(cluster, "w-1", "ended")
    assert pod.exit_code == 3
    stray = int((stage.root / "w-1" / "work" / "daemon").read_text())
    seen = look(stray)
    assert seen is None or not _is_sleep(stray)


def _is_sleep(pid: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def test_who_ignores_sigterm_is_killed_after_the_grace_and_not_before(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1", STUBBORN))
    child = agent_of(stage, "w-1")
    await until(exists(stage.root / "w-1" / "work" / "ready"), "the trap")
    asked, soon = time.monotonic(), Deadline(0.5)
    await cluster.delete("w-1", pod.uid, 1.0)
    assert not soon.over(), "delete does not wait"
    await dead(child)
    assert time.monotonic() - asked >= 0.9
    assert (await reaches(cluster, "w-1", "ended")).exit_code == 128 + signal.SIGKILL


async def test_asking_again_never_gives_more_time_but_may_give_less(cluster: Cluster, stage: LocalStage) -> None:
    pod = await running(cluster, stage.order("w-1", STUBBORN))
    await until(exists(stage.root / "w-1" / "work" / "ready"), "the trap")
    await cluster.delete("w-1", pod.uid, 1000)
    first = (stage.root / "w-1" / "terminating").read_bytes()
    await cluster.delete("w-1", pod.uid, 5000)
    assert (stage.root / "w-1" / "terminating").read_bytes() == first
    await cluster.delete("w-1", pod.uid, 0.1)
    await reaches(cluster, "w-1", "ended")


async def test_a_creator_that_died_before_the_shim_is_taken_over_once(
    cluster: Cluster, stage: LocalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr("holdfast.local.cluster.start_shim", lambda folder: None)
        left = await cluster.create(stage.order("w-1"))
    assert isinstance(left, Pod)
    assert left.phase == "pending"
    young = await cluster.create(stage.order("w-1"))
    assert isinstance(young, Pod)
    assert young.phase == "pending", "its creator may still be about to start it"
    monkeypatch.setattr("holdfast.local.launch.ABANDONED", -1.0)
    replicas = [stage.open() for _ in range(4)]
    made = await asyncio.gather(*(replica.create(stage.order("w-1")) for replica in replicas))
    assert {pod.uid for pod in made if not isinstance(pod, Refused)} == {left.uid}
    pod = await reaches(cluster, "w-1", "running")
    assert pod.uid == left.uid
    for replica in replicas:
        await replica.close()


async def test_a_pod_that_its_creator_left_unstarted_is_started_though_it_is_not_ordered_again(
    cluster: Cluster, stage: LocalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr("holdfast.local.cluster.start_shim", lambda folder: None)
        left = await cluster.create(stage.order("w-1"))
    assert isinstance(left, Pod)
    monkeypatch.setattr("holdfast.local.launch.ABANDONED", -1.0)
    changed = aiter(cluster.changes())
    reported = asyncio.ensure_future(anext(changed))
    assert (await reaches(cluster, "w-1", "running")).uid == left.uid
    assert await reported == {"w-1"}


async def test_of_two_shims_one_takes_the_pod(cluster: Cluster, stage: LocalStage) -> None:
    await running(cluster, stage.order("w-1"))
    shim, child = shim_of(stage, "w-1"), agent_of(stage, "w-1")
    await asyncio.gather(*(asyncio.to_thread(start_shim, Folder(stage.root / "w-1")) for _ in range(4)))
    assert (shim_of(stage, "w-1"), agent_of(stage, "w-1")) == (shim, child)

    async def alone() -> bool:
        return {p.pid for p in stage.left()} == {shim.pid, child.pid}

    await until(alone, "the end of the other shims")


async def test_deleting_a_pod_that_never_started_shuts_out_a_late_shim(
    cluster: Cluster, stage: LocalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr("holdfast.local.cluster.start_shim", lambda folder: None)
        pod = await cluster.create(stage.order("w-1"))
    assert isinstance(pod, Pod)
    await cluster.delete("w-1", pod.uid, 30)
    assert (await reaches(cluster, "w-1", "ended")).exit_code is None
    await asyncio.to_thread(start_shim, Folder(stage.root / "w-1"))
    assert not (stage.root / "w-1" / "agent.json").exists()


async def test_a_sigterm_from_elsewhere_shows_and_gives_all_the_time_it_needs(cluster: Cluster, stage: LocalStage) -> None:
    await running(cluster, stage.order("w-1", STUBBORN))
    await until(exists(stage.root / "w-1" / "work" / "ready"), "the trap")
    assert send(shim_of(stage, "w-1"), signal.SIGTERM)

    async def shows() -> bool:
        pod = await cluster.read("w-1")
        return pod is not None and pod.terminating

    await until(shows, "terminating")
    assert alive(agent_of(stage, "w-1"))


async def test_a_worker_inherits_none_of_the_servers_secrets(
    cluster: Cluster, stage: LocalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_PASSWORD", "secret")

    await running(cluster, stage.order("w-1", ["sh", "-c", "env > env; echo >> env; sleep 1000"]))
    text = await written(stage.root / "w-1" / "work" / "env")
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert "secret" not in text
    assert names <= {
        *("PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_"),
        *("HOLDFAST_WORKER", "HOLDFAST_POD_UID", "HOLDFAST_WORKER_DIR", "HOLDFAST_OUTPUT_DIR"),
    }
    assert not (stage.root / "w-1" / "token").exists(), "a user's own program gets no token"


async def test_an_agents_stored_result_is_the_exit_code_and_its_own_crash_is_not(cluster: Cluster, stage: LocalStage) -> None:
    for name in ("w-1", "w-2"):
        pod = await running(cluster, stage.order_with_agent(name))
        await cluster.protect(name, pod.uid, stamp("c-1", 8))
        if name == "w-1":
            (stage.root / name / "result.json").write_text('{"claim": "c-1", "fence": 8, "exit_code": 5}')
        await kill(agent_of(stage, name))
    reported, crashed = await reaches(cluster, "w-1", "ended"), await reaches(cluster, "w-2", "ended")
    assert (reported.exit_code, reported.exit_fence, reported.trouble) == (5, 8, None)
    assert (crashed.exit_code, crashed.exit_fence) == (None, None), "lost, not failed"
    assert crashed.trouble == "the agent exited with 137"
