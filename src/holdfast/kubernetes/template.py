"""Build a worker's pod from its pool's template. The user's images stay unmodified; our containers are added (decision 0015)."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from ..model.duration import seconds
from ..model.pool import Pool, PoolSpec
from ..ports.cluster import Order
from . import names

SHELL = ["/bin/sh", f"{names.JOB_PATH}/run"]
NOOP = f"{names.SHARED_PATH}/noop"
TOKEN_SECONDS = 3600
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SMALL = {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "256Mi"}}
Json = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """The settings that all pods of this installation share."""

    install: str
    agent_image: str
    servers: tuple[str, ...]  # URLs at which agents reach the replicas
    priority_class: str | None = None
    server_key: str | None = None  # public; agents check with it that a server belongs to this installation
    headroom_class: str = "holdfast-headroom"
    replicas_namespace: str | None = None  # None: the workers' own, or not known, so the checks assume the workers' own
    own_secrets: tuple[str, ...] = ()  # Secrets of the installation: its keys, its DSN, Prometheus' token


def kind_of(spec: PoolSpec) -> str:
    return spec.mode if spec.worker.agent else "plain"


def manifest(order: Order, setup: Setup, anchor_uid: str) -> Json:
    """Returns the pod's manifest."""
    pool, spec = order.pool, order.pool.spec
    pod = deepcopy(spec.pod.get("spec") or {})
    metadata = deepcopy(spec.pod.get("metadata") or {})
    pod["restartPolicy"] = "Never"
    pod["terminationGracePeriodSeconds"] = max(1, math.ceil(seconds(spec.drain.grace)))
    if "serviceAccountName" not in pod:
        pod["serviceAccountName"] = names.account_name(setup.install, pool.name)
    pod.setdefault("automountServiceAccountToken", False)  # the user's containers get a token only if the template says so
    pod.setdefault("enableServiceLinks", False)
    # With headroom, workers keep the default priority 0, which preempts the placeholders below it. By default our class never
    # preempts, so with it the placeholders would not make room.
    if setup.priority_class and "priorityClassName" not in pod and spec.headroom.mode == "off":
        pod["priorityClassName"] = setup.priority_class
    if spec.worker.agent:
        _add_agent(pod, order, setup)
    always = spec.protection.mode == "always"
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": order.name,
            "labels": labels | _labels(order, setup) | ({names.BUSY: "true"} if always else {}),
            "annotations": annotations | protection(always) | {"kubectl.kubernetes.io/default-container": _first(pod)},
            "finalizers": [names.FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ControllerRevision",
                    "name": names.anchor_name(setup.install, pool.id),
                    "uid": anchor_uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": pod,
    }


def protection(on: bool) -> dict[str, str]:
    """Returns the protection's annotations. "Off" is written too, because cluster-autoscaler's default may be not to evict."""
    return {names.DO_NOT_DISRUPT: "true", names.SAFE_TO_EVICT: "false"} if on else {names.SAFE_TO_EVICT: "true"}


def anchor(pool: Pool, setup: Setup) -> Json:
    """Returns the object that controls the pool's pods, so that drains and autoscalers treat them as managed."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": names.anchor_name(setup.install, pool.id),
            "labels": {names.INSTALL: setup.install, names.POOL: pool.name, names.POOL_ID: pool.id},
        },
        "revision": 1,
        "data": {"pool": pool.name},
    }


def _labels(order: Order, setup: Setup) -> dict[str, str]:
    pool = order.pool
    return {
        names.INSTALL: setup.install,
        names.POOL: pool.name,
        names.POOL_ID: pool.id,
        names.WORKER: order.worker,
        names.REVISION: pool.revision,
        names.EPOCH: str(order.epoch),
        names.KIND: kind_of(pool.spec),
    }


def _first(pod: Json) -> str:
    containers = pod.get("containers") or [{}]
    return str(containers[0].get("name", ""))


def _add_agent(pod: Json, order: Order, setup: Setup) -> None:
    spec = order.pool.spec
    shared = {"name": names.SHARED_VOLUME, "mountPath": names.SHARED_PATH}
    token = {
        "name": names.TOKEN_VOLUME,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "audience": names.AUDIENCE, "expirationSeconds": TOKEN_SECONDS}}
            ]
        },
    }
    # The volume is in memory, because an assignment may contain secrets, which must not reach a node's disk.
    memory = {"name": names.SHARED_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}
    pod["volumes"] = [*(pod.get("volumes") or []), memory, token]
    own = {"name": names.TOKEN_VOLUME, "mountPath": names.TOKEN_PATH, "readOnly": True}
    agent = {
        "name": names.AGENT,
        "image": setup.agent_image,
        "command": ["python", "-m", "holdfast.agent"],
        "env": _agent_env(spec, setup),
        "volumeMounts": [shared, own],
        "terminationMessagePath": names.TERMINATION_PATH,
        "securityContext": RESTRICTED,
        "resources": SMALL,
    }
    worker, *beside = pod["containers"]
    if spec.mode == "session":
        agent |= {
            "restartPolicy": "Always",
            "ports": [{"name": "holdfast", "containerPort": names.AGENT_PORT}],
        }
        pulls = _pulls(beside, shared, {worker.get("image", "")})  # the worker's own starts before it is warm
    else:
        worker["volumeMounts"] = [*(worker.get("volumeMounts") or []), shared]
        worker["env"] = [
            *(worker.get("env") or []),
            {"name": "HOLDFAST_ASSIGNMENT", "value": f"{names.JOB_PATH}/assignment.json"},
        ]
        pulls = _pulls([worker, *beside], shared, set())
        if not worker.get("command"):
            worker["command"] = SHELL
            worker.pop("args", None)
    stage = [_stage(setup, shared)] if pulls else []
    # The template's own init containers come first, so that their images are on the node when the agent reports that it is warm.
    pod["initContainers"] = [*(pod.get("initContainers") or []), *stage, *pulls, agent]


def _stage(setup: Setup, shared: Json) -> Json:
    return {
        "name": names.STAGE,
        "image": setup.agent_image,
        "command": ["python", "-m", "holdfast.agent.noop", NOOP],
        "volumeMounts": [shared],
        "terminationMessagePath": names.TERMINATION_PATH,
        "securityContext": RESTRICTED,
        "resources": SMALL,
    }


def _pulls(containers: list[Json], shared: Json, known: set[str]) -> list[Json]:
    """Returns init containers that run the user's images with a no-op command. So the images are on the node and can start
    before the worker counts as warm."""
    pulls: list[Json] = []
    for each in containers:
        if (image := each.get("image", "")) not in known:
            known = known | {image}
            pulls.append(_pull(f"{names.PULL}-{len(pulls) + 1}" if pulls else names.PULL, each, shared))
    return pulls


def _pull(name: str, user: Json, shared: Json) -> Json:
    pull = {
        "name": name,
        "image": user.get("image", ""),
        "command": [NOOP],
        "volumeMounts": [shared],
        "terminationMessagePath": names.TERMINATION_PATH,
    }
    return pull | {key: user[key] for key in ("imagePullPolicy", "securityContext", "resources") if key in user}


def _agent_env(spec: PoolSpec, setup: Setup) -> list[Json]:
    def field(name: str, path: str) -> Json:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    def value(name: str, text: str) -> Json:
        return {"name": name, "value": text}

    env = [
        field("HOLDFAST_WORKER", "metadata.name"),
        field("HOLDFAST_POD_UID", "metadata.uid"),
        value("HOLDFAST_TOKEN_FILE", f"{names.TOKEN_PATH}/token"),
        value("HOLDFAST_SERVERS", ",".join(setup.servers)),
        value("HOLDFAST_WORKER_DIR", f"{names.SHARED_PATH}/agent"),
        *([value("HOLDFAST_SERVER_KEY", setup.server_key)] if setup.server_key else []),
    ]
    if spec.mode == "session":
        return [
            *env,
            field("HOLDFAST_ADVERTISE", "status.podIP"),
            field("HOLDFAST_BIND", "status.podIP"),
            value("HOLDFAST_PORT", str(names.AGENT_PORT)),
        ]
    return [
        *env,
        value("HOLDFAST_STAGE", names.JOB_PATH),
        value("HOLDFAST_TERMINATION", names.TERMINATION_PATH),
    ]
