"""A pool must not reach what belongs to the installation: its Secrets, its account, its Service, the tokens of its agents."""

from typing import Any

import pytest

from holdfast.install.manifests import custom_resource
from holdfast.kubernetes import template_checks
from holdfast.kubernetes.template import Setup
from holdfast.kubernetes.template_checks import problems
from holdfast.model.pool import NetworkSpec, PoolSpec

Json = dict[str, Any]
OWN = ("blue-keys", "db")
TOGETHER = Setup("blue", "holdfast:test", ("http://x",), own_secrets=OWN)
APART = Setup("blue", "holdfast:test", ("http://x",), replicas_namespace="holdfast", own_secrets=OWN)


def pod(*, metadata: Json | None = None, work: Json | None = None, **spec: Any) -> Json:
    container = {"name": "work", "image": "x", **(work or {})}
    return {"spec": {"containers": [container], **spec}, **({"metadata": metadata} if metadata else {})}


def refused(template: Json, setup: Setup = TOGETHER, mode: str = "job", **spec: Any) -> list[str]:
    return [each.field for each in problems(PoolSpec(mode=mode, pod=template, **spec), setup)]  # type: ignore[arg-type]


def volume(**kind: Any) -> Json:
    return pod(volumes=[{"name": "v", **kind}])


# Every way in which a pod of Kubernetes can use a Secret.
SECRETS: dict[str, tuple[Json, str]] = {
    "volume": (volume(secret={"secretName": "blue-keys"}), "volumes[0].secret.secretName"),
    "projected": (volume(projected={"sources": [{"secret": {"name": "db"}}]}), "volumes[0].projected.sources[0].secret.name"),
    "variable": (
        pod(work={"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "db", "key": "dsn"}}}]}),
        "containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    "all variables": (pod(work={"envFrom": [{"secretRef": {"name": "db"}}]}), "containers[0].envFrom[0].secretRef.name"),
    "before the worker": (
        pod(initContainers=[{"name": "i", "image": "x", "envFrom": [{"secretRef": {"name": "db"}}]}]),
        "initContainers[0].envFrom[0].secretRef.name",
    ),
    "for pulling": (pod(imagePullSecrets=[{"name": "fine"}, {"name": "blue-keys"}]), "imagePullSecrets[1].name"),
    "driver": (
        volume(csi={"driver": "d", "nodePublishSecretRef": {"name": "db"}}),
        "volumes[0].csi.nodePublishSecretRef.name",
    ),
    "driver's attributes": (
        volume(csi={"driver": "d", "volumeAttributes": {"secretName": "db"}}),
        "volumes[0].csi.volumeAttributes.secretName",
    ),
    "azure": (volume(azureFile={"secretName": "db", "shareName": "s"}), "volumes[0].azureFile.secretName"),
    "ceph": (volume(cephfs={"monitors": ["m"], "secretRef": {"name": "db"}}), "volumes[0].cephfs.secretRef.name"),
    "flex": (volume(flexVolume={"driver": "d", "secretRef": {"name": "db"}}), "volumes[0].flexVolume.secretRef.name"),
}


@pytest.mark.parametrize("way", SECRETS)
def test_no_pool_uses_a_secret_of_the_installation(way: str) -> None:
    template, field = SECRETS[way]
    assert refused(template) == [f"pod.spec.{field}"]
    assert refused(template, APART) == [], "in a namespace of their own, workers have other Secrets, also of these names"


def test_secrets_of_the_users_own_are_fine_whatever_is_called_like_ours() -> None:
    mine = {"secretKeyRef": {"name": "mine", "key": "db"}}
    container = {"env": [{"name": "db", "valueFrom": mine}, {"name": "SECRET", "value": "db"}]}
    volumes = [{"name": "db", "secret": {"secretName": "mine", "items": [{"key": "db", "path": "db"}]}}]
    assert refused(pod(work=container, volumes=volumes, imagePullSecrets=[{"name": "mine"}])) == []


@pytest.mark.parametrize("field", ["serviceAccountName", "serviceAccount"])
def test_no_pool_runs_with_the_account_of_the_replicas(field: str) -> None:
    assert refused(pod(**{field: "blue"})) == [f"pod.spec.{field}"]
    assert refused(pod(**{field: "builder"})) == []


@pytest.mark.parametrize("name", ["holdfast", "holdfast-postgres"])
@pytest.mark.parametrize("setup", [TOGETHER, APART], ids=["together", "apart"])
def test_no_pool_looks_like_our_pods_to_a_service(name: str, setup: Setup) -> None:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "blue"}
    assert refused(pod(metadata={"labels": labels}), setup) == ["pod.metadata.labels.app.kubernetes.io/name"]
    assert refused(pod(metadata={"labels": {"app.kubernetes.io/name": "mine"}}), setup) == []


@pytest.mark.parametrize("setup", [TOGETHER, APART], ids=["together", "apart"])
def test_no_container_gets_a_token_with_which_it_could_act_as_its_agent(setup: Setup) -> None:
    sources = [{"serviceAccountToken": {"path": "vault", "audience": "vault"}}, {"serviceAccountToken": {"audience": "holdfast"}}]
    found = refused(volume(projected={"sources": sources}), setup)
    assert found == ["pod.spec.volumes[0].projected.sources[1].serviceAccountToken.audience"]


@pytest.mark.parametrize("mode", ["job", "session"])
def test_no_worker_sees_the_processes_of_the_nodes_agents(mode: str) -> None:
    assert refused(pod(hostPID=True), mode=mode) == ["pod.spec.hostPID"]
    assert refused(pod(hostPID=False), mode=mode) == []


@pytest.mark.parametrize("mode", ["session", "job"])
def test_no_container_sees_the_agents_process(mode: str) -> None:
    """An init container of a job's template may run beside the agent, and could read its token."""
    assert refused(pod(shareProcessNamespace=True), mode=mode) == ["pod.spec.shareProcessNamespace"]


@pytest.mark.parametrize("field", ["hostNetwork", "hostIPC"])
def test_no_session_shares_what_its_agent_uses(field: str) -> None:
    assert refused(pod(**{field: True}), mode="session") == [f"pod.spec.{field}"]
    assert refused(pod(**{field: True})) == [], "a job's agent has exited before its container starts"


def test_a_sealed_job_cannot_leave_its_network_policies() -> None:
    assert refused(pod(hostNetwork=True), network=NetworkSpec(seal=True)) == ["pod.spec.hostNetwork"]


@pytest.mark.parametrize(
    "odd",
    [
        {"volumes": "x"},
        {"volumes": [None, {"projected": []}, {"projected": {"sources": [1]}}]},
        {"imagePullSecrets": {"name": 1}},
        {"serviceAccountName": []},
    ],
)
def test_a_template_of_any_shape_is_judged_without_a_failure(odd: Json) -> None:
    assert refused(pod(**odd)) == [], "the API server refuses it"


def test_the_crd_refuses_with_the_same_words() -> None:
    schema = custom_resource()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def messages(part: Any) -> set[str]:
        if isinstance(part, list):
            return {text for each in part for text in messages(each)}
        if not isinstance(part, dict):
            return set()
        own = {part["message"]} if {"rule", "message"} <= part.keys() else set()
        return own | messages(list(part.values()))

    ours = {template_checks.HOST_PID, template_checks.TOKEN, *template_checks.IN_SESSIONS.values()}
    assert ours | {f"app.kubernetes.io/name {template_checks.LABEL}"} <= messages(schema)
