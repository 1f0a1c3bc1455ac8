"""The kubelet of the test cluster reports pods as a real kubelet does, and leaves no process behind."""

import time
from pathlib import Path

from cluster_pods import (
    DEAF,
    SHARED,
    SIDECAR,
    STAY,
    VOLUME,
    Pods,
    condition,
    container,
    container_status,
    exit_code,
    lives,
    running,
    state,
)
from holdfast_testcluster.access import MERGE
from holdfast_testcluster.kubelet_process import KubeletProcess
from waiting import always, eventually

# Jobs


def test_a_job_runs_its_init_containers_first_and_shows_its_exit_code_and_termination_message(pods: Pods) -> None:
    first = container("first", "sleep 0.2; echo one >> /run/shared/order", **SHARED)
    second = container("second", "echo two >> /run/shared/order", **SHARED)
    script = "cat /run/shared/order; echo -n sorry > /run/last-words; exit 7"
    main = container("main", script, terminationMessagePath="/run/last-words", **SHARED)
    pods.create("job", main, initContainers=[first, second], **VOLUME)

    pod = pods.until_phase("job", "Failed")

    ended = state(pod, "main")["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "sorry")
    assert [exit_code(pod, each) for each in ("first", "second")] == [0, 0]
    assert (condition(pod, "Initialized"), condition(pod, "Ready"), condition(pod, "PodScheduled")) == ("True", "False", "True")
    assert pods.access.kubectl("-n", pods.namespace, "logs", "job", "-c", "main") == "one\ntwo\n"


def test_a_pod_is_pending_until_its_init_container_ends(pods: Pods, nodes: KubeletProcess) -> None:
    waits = "until [ -e /run/shared/go ]; do sleep 0.05; done; echo -n went > /dev/termination-log"
    uid = pods.create("job", container("main", STAY), initContainers=[container("waits", waits, **SHARED)], **VOLUME)
    running(pods, nodes, "job", uid, "waits")

    always(lambda: nodes.pid(uid, "main") is None, during=0.5, what="no main container")
    pod = pods.get("job")
    assert pod
    assert (pod["status"]["phase"], condition(pod, "Initialized")) == ("Pending", "False")
    assert state(pod, "main") == {"waiting": {"reason": "PodInitializing"}}

    (nodes.volume(uid, "shared") / "go").touch()
    pod = pods.until("job", lambda pod: condition(pod, "Ready") == "True")
    assert state(pod, "waits")["terminated"]["message"] == "went"
    assert (pod["status"]["phase"], condition(pod, "Initialized")) == ("Running", "True")


def test_a_failed_init_container_fails_the_pod(pods: Pods) -> None:
    pods.create("job", container("main", "true"), initContainers=[container("fails", "exit 3"), container("next", "true")])
    pod = pods.until_phase("job", "Failed")
    assert exit_code(pod, "fails") == 3
    assert "waiting" in state(pod, "next")
    assert "waiting" in state(pod, "main")


# Sidecars


def test_a_sidecar_starts_before_and_ends_after_the_main_container(pods: Pods) -> None:
    note = "echo %s >> /run/shared/order"
    sidecar = f"trap 'sleep 0.3; {note % 'side-end'}; exit 0' TERM; sleep 0.3; {note % 'side'}; while true; do sleep 0.05; done"
    started = {"exec": {"command": ["test", "-e", "/run/shared/order"]}, "periodSeconds": 1}
    main = container("main", f"{note % 'main'}; sleep 0.3; {note % 'main-end'}", **SHARED)
    inits = [container("side", sidecar, startupProbe=started, **SIDECAR, **SHARED), container("init", note % "init", **SHARED)]
    last = container("reads", "trap 'cat /run/shared/order; exit 0' TERM; while true; do sleep 0.05; done", **SIDECAR, **SHARED)
    pods.create("job", main, initContainers=[last, *inits], **VOLUME)  # the first sidecar is the last to end

    pod = pods.until_phase("job", "Succeeded")
    assert exit_code(pod, "main") == 0
    order = pods.access.kubectl("-n", pods.namespace, "logs", "job", "-c", "reads").split()
    assert order == ["side", "init", "main", "main-end", "side-end"]


def test_a_sidecar_that_ends_is_started_again(pods: Pods) -> None:
    sidecar = container(
        "side", "[ -e /run/shared/again ] && exec sleep 1000; touch /run/shared/again; exit 1", **SIDECAR, **SHARED
    )
    pods.create("job", container("main", STAY), initContainers=[sidecar], **VOLUME)

    pod = pods.until(
        "job", lambda pod: container_status(pod, "side").get("restartCount") == 1 and "running" in state(pod, "side")
    )
    assert container_status(pod, "side")["lastState"]["terminated"]["exitCode"] == 1
    pods.until_phase("job", "Running")


def test_a_pod_is_ready_when_its_port_answers(pods: Pods, nodes: KubeletProcess) -> None:
    serve = 'until [ -e /run/shared/go ]; do sleep 0.05; done; exec python3 -m http.server --bind "$IP" 18080'
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1}
    ports = [{"name": "web", "containerPort": 18080}]
    uid = pods.create("web", container("main", serve, env=env, readinessProbe=probe, ports=ports, **SHARED), **VOLUME)
    pod = pods.until_phase("web", "Running")
    assert condition(pod, "Ready") == "False"
    (nodes.volume(uid, "shared") / "go").touch()
    pods.until("web", lambda pod: condition(pod, "Ready") == "True")


# Ends


def test_a_deleted_pod_gets_sigterm_and_may_finish(pods: Pods, nodes: KubeletProcess) -> None:
    finish = "trap 'until [ -e /run/shared/go ]; do sleep 0.05; done; exit 0' TERM; while true; do sleep 0.05; done"
    serves = [container("side", STAY, **SIDECAR)]
    uid = pods.create(
        "job", container("main", finish, **SHARED), initContainers=serves, terminationGracePeriodSeconds=60, **VOLUME
    )
    pids = [running(pods, nodes, "job", uid, which) for which in ("side", "main")]
    pods.delete("job")
    pods.until("job", lambda pod: "deletionTimestamp" in pod["metadata"])
    always(lambda: all(map(lives, pids)), during=0.5, what="it works on, and its sidecar serves it")
    (nodes.volume(uid, "shared") / "go").touch()
    pods.until_gone("job")
    assert not any(map(lives, pids))


def test_a_pod_that_does_not_listen_is_killed_after_its_grace(pods: Pods, nodes: KubeletProcess) -> None:
    uid = pods.create("deaf", container("main", DEAF), terminationGracePeriodSeconds=2)
    pid = running(pods, nodes, "deaf", uid)
    finalizer = {"metadata": {"finalizers": ["kube.test/look"]}}  # so that its last status can be read
    pods.access.kubectl("-n", pods.namespace, "patch", "pod", "deaf", "--type=merge", "-p", str(finalizer).replace("'", '"'))
    begun = time.monotonic()
    pods.delete("deaf")
    pod = pods.until_phase("deaf", "Failed")
    assert 1.5 < time.monotonic() - begun < 10
    assert exit_code(pod, "main") == 137
    assert not lives(pid)
    pods.access.kubectl("-n", pods.namespace, "patch", "pod", "deaf", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    pods.until_gone("deaf")


def test_a_second_deletion_shortens_the_grace(pods: Pods, nodes: KubeletProcess) -> None:
    uid = pods.create("deaf", container("main", DEAF), terminationGracePeriodSeconds=600)
    running(pods, nodes, "deaf", uid)
    pods.delete("deaf")
    pods.until("deaf", lambda pod: "deletionTimestamp" in pod["metadata"])
    pods.delete("deaf", grace=1)
    pods.until_gone("deaf", within=10)


def test_a_deletion_by_force_kills_everything_that_the_container_started(pods: Pods, nodes: KubeletProcess) -> None:
    script = "setsid sh -c 'echo $$ > /run/shared/child; exec sleep 1000' & " + DEAF
    uid = pods.create("deaf", container("main", script, **SHARED), **VOLUME)
    pid = running(pods, nodes, "deaf", uid)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    child = int(eventually(children.read_text, what="a child").split()[0])
    assert lives(child)
    pods.delete("deaf", grace=0)
    pods.until_gone("deaf")
    eventually(lambda: not lives(pid) and not lives(child), within=5, what="end of both")


def test_no_container_outlives_its_kubelet_and_a_rebooted_node_reports_that_it_lost_them(
    pods: Pods, nodes: KubeletProcess
) -> None:
    uid = pods.create("deaf", container("main", DEAF), initContainers=[container("side", DEAF, **SIDECAR)])
    pids = [running(pods, nodes, "deaf", uid, which) for which in ("main", "side")]
    nodes.kill()
    eventually(lambda: not any(map(lives, pids)), within=5, what="end of its containers")
    assert pods.until_phase("deaf", "Running")
    nodes.start()
    pod = pods.until_phase("deaf", "Failed")
    ended = state(pod, "main")["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (255, "Unknown"), (
        "what containerd reports about a container whose end it did not see"
    )


def test_a_rebooted_node_still_knows_what_had_begun_and_ended_before_it_was_reported(pods: Pods, nodes: KubeletProcess) -> None:
    waits = "until [ -e /run/shared/go ]; do sleep 0.05; done; echo -n went > /dev/termination-log"
    uid = pods.create("job", container("main", STAY), initContainers=[container("waits", waits, **SHARED)], **VOLUME)
    pid = running(pods, nodes, "job", uid, "waits")
    nodes.pause()
    (nodes.volume(uid, "shared") / "go").touch()
    eventually(lambda: not lives(pid) and (nodes.folder / "pods" / uid / "containers/waits/exit").read_text(), what="its end")
    nodes.kill()
    nodes.start()
    pod = pods.until_phase("job", "Failed")
    ended = state(pod, "waits")["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "went")
    assert state(pod, "main") == {"waiting": {"reason": "PodInitializing"}}


def test_a_container_that_never_started_shows_in_one_of_two_ways(pods: Pods, nodes: KubeletProcess) -> None:
    """It depends on what the API server knew when the pod was deleted, as in TerminatePod of a real kubelet."""
    late = "trap 'exit 0' TERM; touch /run/shared/hears; while true; do sleep 0.05; done"  # it succeeds after the deletion
    kept = {"finalizers": ["kube.test/look"]}  # so that its last status can be read
    main = container("main", "true") | {"image": "any:missing"}
    pods.create("before", main, initContainers=[container("first", "true")])
    uid = pods.create("after", main, initContainers=[container("first", late, **SHARED)], **VOLUME)
    pods.until("before", lambda pod: "waiting" in state(pod, "main") and "terminated" in state(pod, "first"))
    eventually((nodes.volume(uid, "shared") / "hears").exists, what="a trap")
    pods.until("after", lambda pod: "running" in state(pod, "first"))
    for name in ("before", "after"):
        pods.access.ask("PATCH", f"{pods.path}/{name}", {"metadata": kept}, MERGE)
        pods.delete(name)
    ended = {name: pods.until_phase(name, "Failed") for name in ("before", "after")}
    for pod in ended.values():
        assert exit_code(pod, "first") == 0
        assert (
            container_status(pod, "main")["imageID"],
            container_status(pod, "main").get("containerID"),
            container_status(pod, "main")["lastState"],
        ) == (
            "",
            None,
            {},
        )
    unknown = state(ended["before"], "main")["terminated"]
    assert (unknown["exitCode"], unknown["reason"]) == (137, "ContainerStatusUnknown")
    assert (unknown["startedAt"], unknown["finishedAt"]) == (None, None)
    assert state(ended["after"], "main") == {"waiting": {"reason": "PodInitializing"}}
    for name in ended:
        pods.access.ask("PATCH", f"{pods.path}/{name}", {"metadata": {"finalizers": None}}, MERGE)


def test_eviction_is_refused_while_a_budget_protects_the_pod(pods: Pods, nodes: KubeletProcess) -> None:
    budget = {"metadata": {"name": "busy"}, "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"busy": "true"}}}}
    budgets = f"/apis/policy/v1/namespaces/{pods.namespace}/poddisruptionbudgets"
    pods.access.ask("POST", budgets, budget)
    for name, labels in (("busy", {"busy": "true"}), ("free", {})):
        pods.create(name, container("main", STAY), labels=labels)
        pods.until(name, lambda pod: condition(pod, "Ready") == "True")
    eventually(lambda: pods.access.ask("GET", f"{budgets}/busy")["status"].get("observedGeneration"), what="a budget that counts")

    def evict(name: str) -> int:
        return pods.access.request("POST", f"{pods.path}/{name}/eviction", {"metadata": {"name": name}}).status

    assert evict("busy") == 429
    assert evict("free") == 201
    pods.until_gone("free")
    assert pods.get("busy")
