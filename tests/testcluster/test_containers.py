"""What a container of the test cluster gets: program, environment, tokens, logs; and hollow pods."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from cluster_pods import SHARED, SIDECAR, STAY, VOLUME, Pods, condition, container, exit_code, running, state
from holdfast_testcluster import binaries
from holdfast_testcluster.access import Access
from holdfast_testcluster.kubelet_process import KubeletProcess
from holdfast_testcluster.status import Object
from waiting import eventually


def test_what_cannot_start_shows_why(pods: Pods) -> None:
    pods.create("typo", container("main") | {"command": ["/no/such/program"]})
    pods.create("place", container("main", "true", volumeMounts=[{"name": "shared", "mountPath": "/not-here"}]), **VOLUME)
    for name, why in (("typo", "No such file"), ("place", "/not-here does not exist on this machine")):
        ended = state(pods.until_phase(name, "Failed"), "main")["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
        assert why in ended["message"]
    assert not Path("/not-here").exists()


def test_a_container_gets_its_own_environment_and_fields_of_its_pod(pods: Pods) -> None:
    refs = {
        "NAME": "metadata.name",
        "UID_": "metadata.uid",
        "IP": "status.podIP",
        "NODE": "spec.nodeName",
        "TEAM": "metadata.labels['team']",
    }
    env = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in refs.items()]
    env.append({"name": "URL", "value": "http://$(IP):80/$$(IP)"})
    main = container("main") | {
        "command": ["env"],
        "env": env,
        "args": ["sh", "-c", 'echo "$0 $1"; env; exit 0', "$(NAME)", "$(NONE)"],
    }
    uid = pods.create("fields", main, labels={"team": "a"})
    pod = pods.until_phase("fields", "Succeeded")

    first, *lines = pods.access.kubectl("-n", pods.namespace, "logs", "fields").splitlines()
    seen = dict(line.split("=", 1) for line in lines)
    ip = pod["status"]["podIP"]
    assert first == "fields $(NONE)"
    assert (seen["NAME"], seen["UID_"], seen["IP"], seen["NODE"], seen["TEAM"]) == (
        "fields",
        uid,
        ip,
        pod["spec"]["nodeName"],
        "a",
    )
    assert seen["URL"] == f"http://{ip}:80/$(IP)"
    assert seen.keys() - refs.keys() - {"URL", "PATH", "HOME", "HOSTNAME", "PWD", "SHLVL", "_", "OLDPWD"} == set()


def test_a_token_is_bound_to_its_pod(pods: Pods) -> None:
    source = {"serviceAccountToken": {"audience": "holdfast", "expirationSeconds": 600, "path": "token"}}
    mount = {"name": "token", "mountPath": "/var/run/secrets/holdfast", "readOnly": True}
    main = container("main", "cat /var/run/secrets/holdfast/token", volumeMounts=[mount])
    uid = pods.create("job", main, volumes=[{"name": "token", "projected": {"sources": [source]}}])
    pods.until_phase("job", "Succeeded")
    token = pods.access.kubectl("-n", pods.namespace, "logs", "job")

    def review(token: str) -> Object:
        body = {"spec": {"token": token, "audiences": ["holdfast"]}}
        answer: Object = pods.access.ask("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
        reported: Object = answer["status"]
        return reported

    status = review(token)
    assert status["authenticated"]
    assert status["user"]["username"] == f"system:serviceaccount:{pods.namespace}:default"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]
    assert "authenticated" not in review(token[:-8] + "AAAAAAAA")


def test_the_usual_service_account_folder_is_there(pods: Pods) -> None:
    read = "cd /var/run/secrets/kubernetes.io/serviceaccount && cat namespace && head -1 ca.crt && test -s token && touch token"
    pods.create("job", container("main", read))
    pods.until_phase("job", "Failed")  # the touch fails, because the volume is read-only
    log = pods.access.kubectl("-n", pods.namespace, "logs", "job")
    assert log.startswith(f"{pods.namespace}-----BEGIN CERTIFICATE-----")
    assert "Read-only file system" in log


def test_an_image_that_cannot_be_pulled_is_shown_until_it_can(pods: Pods, nodes: KubeletProcess) -> None:
    pods.create("never", container("main", "true") | {"image": "any:missing"})
    pods.create("later", container("main") | {"image": "later:test"})
    for name in ("never", "later"):
        pods.until(name, lambda pod: state(pod, "main").get("waiting", {}).get("reason") == "ErrImagePull")
        pod = pods.until(name, lambda pod: state(pod, "main").get("waiting", {}).get("reason") == "ImagePullBackOff")
        assert pod["status"]["phase"] == "Pending"
    nodes.provide_image("later:test", ["true"])
    pods.until_phase("later", "Succeeded")
    assert (pods.get("never") or {})["status"]["phase"] == "Pending"


def test_an_image_has_its_own_program(pods: Pods) -> None:
    pods.create("greets", container("main") | {"image": "greeter:test", "args": ["you"]})
    pods.until_phase("greets", "Succeeded")
    assert pods.access.kubectl("-n", pods.namespace, "logs", "greets") == "hello you\n"


def test_logs_are_followed_to_the_end(pods: Pods, nodes: KubeletProcess) -> None:
    script = "echo one; until [ -e /run/shared/go ]; do sleep 0.05; done; echo two; exit 1"
    uid = pods.create("job", container("main", script, **SHARED), **VOLUME)
    running(pods, nodes, "job", uid)
    command = [str(binaries.path("kubectl")), "-n", pods.namespace, "logs", "--follow", "job"]
    with subprocess.Popen(command, env=pods.access.kubectl_env(), stdout=subprocess.PIPE, text=True) as follows:
        assert follows.stdout
        assert follows.stdout.readline() == "one\n"
        (nodes.volume(uid, "shared") / "go").touch()
        assert follows.stdout.read() == "two\n"
    assert pods.access.kubectl("-n", pods.namespace, "logs", "--tail=1", "job") == "two\n"


# Hollow


def test_hollow_pods_run_and_end_without_a_process(
    control_plane: Access, namespace: str, make_nodes: Callable[..., KubeletProcess]
) -> None:
    nodes = make_nodes(control_plane, namespace, nodes=5, hollow=True)
    pods = Pods(control_plane, namespace)
    inits = [container("holdfast-stage", "true"), container("side", STAY, **SIDECAR)]
    for number in range(10):
        pods.create(f"session-{number}", container("main", STAY), initContainers=inits)
        pods.create(f"job-{number}", container("main", STAY), initContainers=[*inits, container("holdfast-agent", STAY)])
    for number in range(10):
        session = pods.until(f"session-{number}", lambda pod: condition(pod, "Ready") == "True")
        assert session["status"]["phase"] == "Running"
        warm = pods.until(f"job-{number}", lambda pod: "running" in state(pod, "holdfast-agent"))
        assert (warm["status"]["phase"], condition(warm, "Initialized")) == ("Pending", "False")
        assert exit_code(warm, "holdfast-stage") == 0
        assert "waiting" in state(warm, "main")
    assert not (nodes.folder / "pods").exists()
    control_plane.ask("DELETE", pods.path, {})
    eventually(lambda: not control_plane.ask("GET", pods.path)["items"], within=10, what="no pods")
