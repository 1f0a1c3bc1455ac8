"""Refuse pod templates that would break a worker, or that would reach what belongs to the installation (decision 0023)."""

from collections.abc import Iterator
from typing import Any

from ..model.pool import FieldProblem, PoolSpec
from . import names
from .template import Json, Setup

NAME_LABEL = "app.kubernetes.io/name"
REPLICAS, POSTGRES = "holdfast", "holdfast-postgres"  # values of NAME_LABEL by which the installation's Services select
# The CRD refuses these too, with the same texts, because it can without knowing the installation (install/crd.yaml).
HOST_PID = "would show the processes of all agents of the node, and with them their tokens"
SHARED_PROCESSES = "would show the agent's process, and with it its token, to the other containers"
IN_SESSIONS = {
    "hostNetwork": "would open the agent's port on the node, where no network policy applies",
    "hostIPC": "would share memory with other processes of the node, also with those of other tenants",
}
TOKEN = "only the agent gets a token for this audience, because with it a container could act as its agent"  # noqa: S105
LABEL = "is the label of Holdfast's own pods, whose Service would send requests and credentials to the worker"


def problems(spec: PoolSpec, setup: Setup) -> list[FieldProblem]:
    """Returns the problems of the template that we refuse ourselves. The API server checks everything else."""
    found: list[FieldProblem] = []
    template = spec.pod.get("spec")
    containers = template.get("containers") if isinstance(template, dict) else None
    real = isinstance(containers, list) and all(isinstance(each, dict) for each in containers)
    if not isinstance(template, dict) or not containers or not real:
        return [FieldProblem("pod.spec.containers", "a pool on Kubernetes needs a pod template with at least one container")]
    for field in spec.pod:
        if field not in ("metadata", "spec"):
            found.append(FieldProblem(f"pod.{field}", "a pod template has metadata and spec"))
    if template.get("restartPolicy", "Never") != "Never":
        found.append(FieldProblem("pod.spec.restartPolicy", "must be Never, because a worker is never restarted"))
    if "terminationGracePeriodSeconds" in template:
        found.append(FieldProblem("pod.spec.terminationGracePeriodSeconds", "set the pool's drain.grace instead"))
    if "nodeName" in template:
        found.append(FieldProblem("pod.spec.nodeName", "would bypass the scheduler; use nodeSelector or affinity"))
    for part in ("containers", "initContainers", "volumes"):
        for n, each in enumerate(template.get(part) or []):
            if isinstance(each, dict) and str(each.get("name", "")).startswith("holdfast-"):
                found.append(FieldProblem(f"pod.spec.{part}[{n}].name", "names that begin with holdfast- are reserved"))
    found += _mounts(template)
    found += _restarts(template)
    found += _host(spec, template)
    found += _tokens(template)
    if setup.replicas_namespace is None:
        found += _account(template, setup)
        found += _secrets(template, "pod.spec", frozenset(setup.own_secrets), within=False)
    metadata = spec.pod.get("metadata") or {}
    for part in ("labels", "annotations"):
        for key in metadata.get(part) or {} if isinstance(metadata, dict) else {}:
            if str(key).startswith(f"{names.DOMAIN}/") or key in (names.DO_NOT_DISRUPT, names.SAFE_TO_EVICT):
                found.append(FieldProblem(f"pod.metadata.{part}.{key}", "is reserved, because Holdfast writes it"))
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    if isinstance(labels, dict) and labels.get(NAME_LABEL) in (REPLICAS, POSTGRES):
        found.append(FieldProblem(f"pod.metadata.labels.{NAME_LABEL}", LABEL))
    if spec.worker.serve:
        found.append(FieldProblem("worker.serve", "on Kubernetes the pod's own container serves, on worker.port"))
    if spec.worker.listen not in (None, "port"):
        found.append(FieldProblem("worker.listen", "only on one machine: here the pod's own container listens on worker.port"))
    if spec.mode == "job" and spec.worker.activate:
        found.append(FieldProblem("worker.activate", "a job's container starts only after its claim: put it into the command"))
    return found


def _mounts(template: Json) -> list[FieldProblem]:
    """Returns a problem per mount of the agent's volumes, because no other container may read the agent's token or its holder's
    credential."""
    return [
        FieldProblem(f"pod.spec.{part}[{n}].volumeMounts[{m}].name", "is the agent's own volume")
        for part in ("containers", "initContainers")
        for n, each in enumerate(template.get(part) or [])
        for m, mount in enumerate((isinstance(each, dict) and each.get("volumeMounts")) or [])
        if isinstance(mount, dict) and str(mount.get("name", "")).startswith("holdfast-")
    ]


def _restarts(template: Json) -> list[FieldProblem]:
    """Returns a problem per rule that restarts the worker's container, because work would run twice. Since Kubernetes 1.35 a
    container can override the pod's restart policy, and since 1.36 it can restart all containers."""
    found: list[FieldProblem] = []
    worker = template["containers"][0]
    if worker.get("restartPolicy", "Never") != "Never" or worker.get("restartPolicyRules"):
        found.append(FieldProblem("pod.spec.containers[0].restartPolicy", "must be Never, because a worker is never restarted"))
    for part in ("containers", "initContainers"):
        for n, each in enumerate(template.get(part) or []):
            rules = each.get("restartPolicyRules") if isinstance(each, dict) else None
            if any(isinstance(rule, dict) and rule.get("action") == "RestartAllContainers" for rule in rules or []):
                found.append(FieldProblem(f"pod.spec.{part}[{n}].restartPolicyRules", "would restart a worker that has ended"))
    return found


def _host(spec: PoolSpec, template: Json) -> list[FieldProblem]:
    """Returns a problem per namespace of the node that would show an agent to the worker. A sealed job needs its network
    policies, which do not apply to the network of the node."""
    found = [FieldProblem("pod.spec.hostPID", HOST_PID)] if template.get("hostPID") else []
    if spec.worker.agent and template.get("shareProcessNamespace"):
        found.append(FieldProblem("pod.spec.shareProcessNamespace", SHARED_PROCESSES))
    if spec.mode == "session":
        found += [FieldProblem(f"pod.spec.{field}", why) for field, why in IN_SESSIONS.items() if template.get(field)]
    elif spec.network.seal and template.get("hostNetwork"):
        found.append(FieldProblem("pod.spec.hostNetwork", "network.seal has no effect there, because no network policy applies"))
    return found


def _tokens(template: Json) -> list[FieldProblem]:
    """Returns a problem per projected token with which a container could register as its agent."""
    return [
        FieldProblem(f"pod.spec.volumes[{n}].projected.sources[{m}].serviceAccountToken.audience", TOKEN)
        for n, volume in enumerate(_items(template, "volumes"))
        for m, source in enumerate(_items(volume.get("projected"), "sources"))
        if isinstance(token := source.get("serviceAccountToken"), dict) and token.get("audience") == names.AUDIENCE
    ]


def _account(template: Json, setup: Setup) -> list[FieldProblem]:
    """Returns a problem per field that gives the worker the replicas' ServiceAccount. `serviceAccount` is an old name of the same
    field, which the API server still reads."""
    return [
        FieldProblem(f"pod.spec.{field}", "is the replicas' own account; workers with it could create and delete all pods here")
        for field in ("serviceAccountName", "serviceAccount")
        if template.get(field) == setup.install
    ]


def _secrets(value: Any, at: str, own: frozenset[str], *, within: bool) -> Iterator[FieldProblem]:
    """Yields a problem per use of one of the installation's own Secrets. Each kind of volume, variable and driver names Secrets
    in its own way, but always in or below a field whose name contains "secret"; so new kinds are covered as well."""
    if isinstance(value, dict):
        for key, each in value.items():
            inside = "secret" in str(key).lower()
            named = inside or (within and key == "name")
            if named and isinstance(each, str) and each in own:
                yield FieldProblem(f"{at}.{key}", f"Secret {each!r} belongs to the installation of Holdfast, not to its workers")
            yield from _secrets(each, f"{at}.{key}", own, within=inside)
    elif isinstance(value, list):
        for n, each in enumerate(value):
            yield from _secrets(each, f"{at}[{n}]", own, within=within)


def _items(value: Any, field: str) -> list[Json]:
    """Returns the objects of a list. Other values count as empty objects, because the API server refuses them."""
    found = value.get(field) if isinstance(value, dict) else None
    return [each if isinstance(each, dict) else {} for each in found] if isinstance(found, list) else []
