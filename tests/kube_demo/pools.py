"""The two pools of the demo, written as a user would declare them on a cluster."""

from typing import Any

from pool_specs import ADDRESS, SERVE, SPREAD

from holdfast.kubernetes import names

INSTALL = "holdfast"
PARK_TTL = 5  # seconds
# A program that is PID 1 receives SIGTERM only if it has a handler for it.
LEAVES = f"import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); {SERVE}"
# The grace period of pods that are deleted. Here these are free pods, because a drain waits for busy pods without a limit.
# Without it, a drain would wait long for a pod that is still starting, because PID 1 ignores signals until it has a handler.
GRACE = "5s"
# Spreads the pods evenly over the nodes, so that there are some on every node that is drained.
EVENLY = {**SPREAD, "labelSelector": {"matchLabels": {names.INSTALL: INSTALL}}}


def _pool(name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    pod = {"spec": {"containers": [container], "topologySpreadConstraints": [EVENLY]}}
    declared = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": name}}
    return declared | {"spec": {**spec, "drain": {"grace": GRACE}, "pod": pod}}


POOLS = [
    _pool("linux", {"name": "work", "image": "any:demo"}, mode="job", warm=4, max=12),
    _pool(
        "notebook",
        {"name": "work", "image": "notebook:demo", "command": ["python", "-c", LEAVES], "env": [ADDRESS]},
        mode="session",
        warm=3,
        max=10,
        claim={"lease": "15s"},
        park={"ttl": f"{PARK_TTL}s"},
    ),
]
