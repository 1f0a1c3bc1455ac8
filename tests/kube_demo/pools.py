"""The two pools of the demo, as somebody would declare them on a cluster."""

from typing import Any

from pool_specs import ADDRESS, SERVE, SPREAD

from holdfast.kubernetes import names

INSTALL = "holdfast"
PARK_TTL = 5  # seconds
# A program that is PID 1 hears SIGTERM only if it says so.
LEAVES = f"import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); {SERVE}"
# A drain waits for busy pods however long they take. This is for pods that are told to end: free ones here, since PID 1 hears
# nothing while it still starts, and would be waited for.
GRACE = "5s"
# Over the nodes as evenly as may be, so that a drain meets some wherever it comes.
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
