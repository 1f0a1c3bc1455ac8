"""Build all objects of an installation, in the order in which to apply them. The replicas' namespace is not included."""

from base64 import b64encode
from importlib.resources import files

import yaml

from ..kubernetes import rights
from . import monitoring, postgres, replicas
from .values import Json, Secrets, Values, check

SHARED = {"app.kubernetes.io/name": "holdfast"}  # labels of objects that all installations of a cluster share
WORKERS, HEADROOM = "holdfast-worker", "holdfast-headroom"


def objects(values: Values) -> list[Json]:
    """Returns all objects. Raises WrongValues if the values are invalid."""
    check(values)
    found = [custom_resource()] if values.crd else []
    found += priority_classes(values) if values.priority_classes else []
    found += [workers_namespace(values)] if values.apart and values.make_namespace else []
    found += [service_account(values), *role(values), *cluster_role(values)]
    found += secrets(values, values.secrets) if values.secrets is not None else []
    found += postgres.throw_away(values) if values.try_postgres is not None else []
    found += [replicas.service(values), replicas.deployment(values)]
    found += [replicas.budget(values)] if values.replicas > 1 else []
    found += [replicas.network_policy(values)] if values.network_policy else []
    found += [monitoring.service_monitor(values), monitoring.rule(values)] if values.metrics else []
    return found


def custom_resource() -> Json:
    found: Json = yaml.safe_load((files("holdfast.install") / "crd.yaml").read_text(encoding="utf-8"))
    return found


def priority_classes(values: Values) -> list[Json]:
    """Returns the two priority classes. Workers are above pods without a class, because preemption ignores disruption budgets.
    Placeholders are below everything, but not below -10, because cluster-autoscaler adds no nodes for lower priorities."""

    def made(name: str, value: int, preemption: str, description: str) -> Json:
        return {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name, "labels": SHARED},
            "value": value,
            "preemptionPolicy": preemption,
            "description": description,
        }

    return [
        made(WORKERS, 1000, values.preemption, "Workers of Holdfast whose pool names no other class."),
        made(HEADROOM, -10, "Never", "Placeholders of Holdfast, which pods of a higher priority may preempt."),
    ]


def workers_namespace(values: Values) -> Json:
    """Returns the namespace of the workers. Its Pod Security level refuses pods that could take over their node, and with it the
    tokens and Secrets of all other pods there."""
    level = {f"pod-security.kubernetes.io/{mode}": values.pod_security for mode in ("enforce", "warn")}
    keep = {"helm.sh/resource-policy": "keep"}  # deleting it would end every worker, also busy ones, and every pool
    meta = {"name": values.workers, "labels": values.labels | level, "annotations": keep}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def service_account(values: Values) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": values.meta,
        "automountServiceAccountToken": False,  # the replicas' pods set this to true themselves
    }


def role(values: Values) -> list[Json]:
    """Returns the Role and its binding in the workers' namespace. Replicas have no right in their own."""
    rules = rights.rules(rights.NAMESPACED, values.install)
    meta = values.meta | {"namespace": values.workers}
    return [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": values.install},
            "subjects": [_subject(values)],
        },
    ]


def cluster_role(values: Values) -> list[Json]:
    """Returns the ClusterRole and its binding. Names of namespaces and installations contain no colon, so this name is unique."""
    meta = {"name": f"holdfast:{values.namespace}:{values.install}", "labels": values.labels}
    rules = rights.rules(rights.CLUSTER, values.install)
    return [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": meta["name"]},
            "subjects": [_subject(values)],
        },
    ]


def secrets(values: Values, made: Secrets) -> list[Json]:
    """Returns the installation's keys, and Prometheus' token if the installation makes one."""

    def secret(name: str, **data: bytes) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": values.meta | {"name": name},
            "immutable": True,  # so that applying newly printed keys fails; with other keys, every agent would be locked out
            "type": "Opaque",
            "data": {key: b64encode(each).decode() for key, each in data.items()},
        }

    found = [secret(values.keys_secret, key=made.key, token=made.token.encode())]
    if values.metrics and values.metrics_secret is None:
        found.append(secret(values.scrape_secret, token=made.metrics.encode()))
    return found


def _subject(values: Values) -> Json:
    return {"kind": "ServiceAccount", "name": values.install, "namespace": values.namespace}
