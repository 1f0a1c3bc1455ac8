"""Build a Postgres for trying things out. When its pod ends, all data is lost: every claim, pool and token."""

from base64 import b64encode

from .security import CONTAINER_SECURITY, pod_security
from .values import Json, Values

MARK = {"holdfast.dev/throw-away": "for trying out only; everything in it ends with its pod"}
USER = 999  # the UID in the official image
HOME = "/var/lib/postgresql/data"


def throw_away(values: Values) -> list[Json]:
    made = [_service(values), _stateful_set(values)]
    return made if values.secrets is None else [_secret(values, values.secrets.password), *made]


def _secret(values: Values, password: str) -> Json:
    dsn = f"postgresql://holdfast:{password}@{values.postgres}.{values.namespace}.svc:5432/holdfast"
    data = {"dsn": dsn, "password": password}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _meta(values),
        "immutable": True,  # so that applying a newly printed password fails
        "type": "Opaque",
        "data": {name: b64encode(text.encode()).decode() for name, text in data.items()},
    }


def _service(values: Values) -> Json:
    ports = [{"name": "postgres", "port": 5432, "targetPort": "postgres"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(values),
        "spec": {"selector": _labels(values), "ports": ports},
    }


def _stateful_set(values: Values) -> Json:
    """Returns a StatefulSet, because it guarantees at most one pod at a time, even if the node fails."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _meta(values),
        "spec": {
            "replicas": 1,
            "serviceName": values.postgres,
            "selector": {"matchLabels": _labels(values)},
            "template": {"metadata": {"labels": _labels(values), "annotations": MARK}, "spec": _pod(values)},
        },
    }


def _pod(values: Values) -> Json:
    password = {"name": values.postgres, "key": "password"}
    container = {
        "name": "postgres",
        "image": values.try_postgres,
        "env": [
            {"name": "POSTGRES_USER", "value": "holdfast"},
            {"name": "POSTGRES_DB", "value": "holdfast"},
            {"name": "POSTGRES_PASSWORD", "valueFrom": {"secretKeyRef": password}},
            {"name": "PGDATA", "value": f"{HOME}/cluster"},
        ],
        "ports": [{"name": "postgres", "containerPort": 5432}],
        "readinessProbe": {"exec": {"command": ["pg_isready", "-q", "-h", "127.0.0.1", "-U", "holdfast"]}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "data", "mountPath": HOME},
            {"name": "socket", "mountPath": "/var/run/postgresql"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        ],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(USER),
        "containers": [container],
        "volumes": [{"name": name, "emptyDir": {}} for name in ("data", "socket", "tmp")],
    }


def _labels(values: Values) -> dict[str, str]:
    """Returns labels that differ from those of the replicas, so that the replicas' Service and the workers' network policies do
    not select this pod."""
    return {"app.kubernetes.io/name": "holdfast-postgres", "app.kubernetes.io/instance": values.install}


def _meta(values: Values) -> Json:
    return {"name": values.postgres, "namespace": values.namespace, "labels": _labels(values), "annotations": MARK}
