"""Find what the cluster reports about a pod and its worker's row does not show yet. Pure."""

from ..model.pod import Pod
from ..ports.store import Facts, Row


def new_facts(row: Row, pod: Pod) -> Facts | None:
    """Returns what the cluster reports, or None if the row shows the same."""
    worker = row.worker
    if worker.pod_uid != pod.uid:
        return None
    shown = (worker.node, worker.terminating, worker.schedulable, row.pod_protected)
    if shown == (pod.node, pod.terminating or worker.terminating, pod.schedulable, pod.protected):
        return None
    return Facts(
        worker=worker.id,
        uid=pod.uid,
        node=pod.node,
        terminating=pod.terminating,
        schedulable=pod.schedulable,
        protected=pod.protected,
        endpoint=pod.endpoint,
    )
