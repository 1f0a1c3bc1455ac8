"""Restores the records of containers after a reboot of their node, as containerd does, which keeps its records on disk."""

import time

from holdfast_testcluster.container import Container
from holdfast_testcluster.status import Object

# what containerd reports for a container when it does not know how the container ended
UNSEEN = {"exitCode": 255, "reason": "Unknown"}


def recall(container: Container, status: Object) -> None:
    """Sets the container's record. `status` is from the API server and may be older than the record on disk."""
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
