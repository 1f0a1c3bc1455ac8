"""Build the replicas' Deployment, its disruption budget, its network policy, and the Service through which they are reached."""

from ..kubernetes import names
from .security import CONTAINER_SECURITY, pod_security
from .values import Json, Values

PORT, PROBES = 7070, 7072
USER = 65532
# Seconds; longer than LINGER, the grace for requests in progress (serve.GRACE) and the last writes to Postgres together.
GRACE = 30
# Seconds before SIGTERM. Without this pause, nodes that do not know of the deletion yet would send requests to an ended replica.
LINGER = 3
DATA, KEYS, SCRAPER = "/var/lib/holdfast", "/etc/holdfast", "/etc/holdfast-metrics"
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


def service(values: Values) -> Json:
    ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": values.meta,
        "spec": {"selector": values.labels, "ports": ports},
    }


def budget(values: Values) -> Json:
    """Returns the budget that keeps one replica available. Do not use it for a single replica, because a drain of its node would
    wait forever."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": values.meta,
        "spec": {"minAvailable": 1, "selector": {"matchLabels": values.labels}},
    }


def network_policy(values: Values) -> Json:
    """Returns who may reach the replicas: workers, pods of the replicas' namespace, and pods of the clients' namespaces. The
    probe port is open, because kubelets connect from any node, and it serves two status codes only. Egress stays unrestricted,
    because the addresses of Postgres and of the API server are not known here."""

    def namespace(name: str) -> Json:
        return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}

    workers = namespace(values.workers) | {"podSelector": {"matchLabels": {names.INSTALL: values.install}}}
    peers = [workers, {"podSelector": {}}, *(namespace(name) for name in values.clients)]
    ingress = [
        {"from": peers, "ports": [{"protocol": "TCP", "port": PORT}]},
        {"ports": [{"protocol": "TCP", "port": PROBES}]},
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": values.meta,
        "spec": {"podSelector": {"matchLabels": values.labels}, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def deployment(values: Values) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": values.meta,
        "spec": {
            "replicas": values.replicas,
            "selector": {"matchLabels": values.labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
            "template": {"metadata": {"labels": values.labels}, "spec": _pod(values)},
        },
    }


def _pod(values: Values) -> Json:
    secret = {"secretName": values.keys_secret, "defaultMode": 0o440}
    pod: Json = {
        "serviceAccountName": values.install,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,  # its variables start with the Service's name, so they would look like our settings
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": pod_security(USER),
        "topologySpreadConstraints": [_spread(values, "kubernetes.io/hostname"), _spread(values, "topology.kubernetes.io/zone")],
        "containers": [_container(values)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "data", "emptyDir": {}},
            {"name": "keys", "secret": secret},
        ],
    }
    if _mounts_scraper(values):
        # Optional, because an installation of an older release does not have this Secret yet.
        token = {"secretName": values.scrape_secret, "defaultMode": 0o440, "optional": True}
        pod["volumes"] += [{"name": "metrics", "secret": token}]
    if values.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in values.pull_secrets]
    return pod


def _spread(values: Values, key: str) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": values.labels},
    }


def _container(values: Values) -> Json:
    args = ["serve", "--host=0.0.0.0", f"--port={PORT}", f"--probe-port={PROBES}", f"--data-dir={DATA}"]
    return {
        "name": "holdfast",
        "image": values.image,
        "args": [*args, "--pooled"] if values.pooled else args,
        "env": _env(values),
        "ports": [{"name": "http", "containerPort": PORT}, {"name": "probes", "containerPort": PROBES}],
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=3),
        "lifecycle": {"preStop": {"sleep": {"seconds": LINGER}}},
        "resources": RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
            {"name": "data", "mountPath": DATA},
            {"name": "keys", "mountPath": KEYS, "readOnly": True},
            *([{"name": "metrics", "mountPath": SCRAPER, "readOnly": True}] if _mounts_scraper(values) else []),
        ],
    }


def _mounts_scraper(values: Values) -> bool:
    """Returns whether replicas accept a token that the installation made. Another Secret has a token that an admin created."""
    return values.metrics and values.metrics_secret is None


def _probe(path: str, period: int, failures: int) -> Json:
    return {"httpGet": {"path": path, "port": "probes"}, "periodSeconds": period, "failureThreshold": failures}


def _env(values: Values) -> list[Json]:
    dsn = {"name": values.dsn_secret or values.postgres, "key": "dsn"}
    plain = {
        "HOLDFAST_NAMESPACE": values.workers,
        "HOLDFAST_REPLICAS_NAMESPACE": values.namespace,
        "HOLDFAST_OWN_SECRETS": ",".join(values.own_secrets),
        "HOLDFAST_INSTALL": values.install,
        "HOLDFAST_AGENT_IMAGE": values.image,
        "HOLDFAST_AGENT_URL": f"http://{values.install}.{values.namespace}.svc:{PORT}",
        "HOLDFAST_KEY_FILE": f"{KEYS}/key",
        "HOLDFAST_ADMIN_TOKEN_FILE": f"{KEYS}/token",
        "HOLDFAST_METRICS_TOKEN_FILE": f"{SCRAPER}/token",
        "HOLDFAST_PRIORITY_CLASS": "holdfast-worker",
    }
    return [
        {"name": "HOLDFAST_DSN", "valueFrom": {"secretKeyRef": dsn}},
        {"name": "HOLDFAST_ADVERTISE", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *({"name": name, "value": value} for name, value in plain.items()),
    ]
