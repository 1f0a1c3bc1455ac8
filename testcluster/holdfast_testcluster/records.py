"""What the runtime of a rebooted node still knows of its containers: containerd keeps its records on disk."""

import time

from holdfast_testcluster.container import Container
from holdfast_testcluster.status import Object

UNSEEN = {"exitCode": 255, "reason": "Unknown"}  # containerd's words for a container whose end it did not see


def recall(container: Container, status: Object) -> None:
    """`status` is its status as the API server has it, which may be older than what the runtime knows."""
    record = container.record
    record.state, record.restarts = status.get("state", record.state), status.get("restartCount", 0)
    record.container_id = status.get("containerID", "")
    if "terminated" in record.state or not container.exit_file.exists():
        return
    code, at = container.exit_file.read_text(), container.exit_file.stat().st_mtime
    end: Object = dict(UNSEEN) if not code else container.end(int(code))
    record.container_id = container.identity
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    record.state = {"terminated": {**end, "startedAt": when, "finishedAt": when, "containerID": record.container_id}}
