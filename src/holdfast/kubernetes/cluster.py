"""Implements the Cluster port on a Kubernetes namespace. A write does nothing if the pod is no longer the one that was read."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from ..model.pod import Pod, Stamp
from ..model.pool import FieldProblem, Pool
from ..ports.cluster import AgentIdentity, ClusterUnavailable, Finding, Order, OutcomeUnknown, Output, Refused
from ..ports.declared import Declarations
from ..ports.recovery import Remembered
from ..tasks import end_all
from . import names, refusals, template, template_checks
from .api import Api, ApiRefused
from .declared import WorkerPools
from .diagnose import diagnose
from .informer import Informer
from .logs import Logs
from .nodes import Nodes
from .objects import Objects
from .shapes import PodObject, ended_at, facts, has_ended, is_ours, is_over, is_recorded_later, never_ran
from .tokens import Reviews

PROTECT_SECONDS = 1.0
KEEP_OUTPUT = 120.0  # seconds that a pod which ended by itself is kept, so that its output can be read to the end
KEEP_BESIDE = 10.0  # the same while sidecars still run and occupy the node; a client that follows the output needs about 1 s
BESIDE_GRACE = 30.0  # seconds of grace for those sidecars, as for every worker without a claim


class KubernetesCluster:
    """Any number of replicas, and other installations, can use the same namespace at the same time."""

    passes_input = False  # a job's agent has exited before its container starts
    separates_jobs = True

    def __init__(self, api: Api, namespace: str, setup: template.Setup, *, keep_output: float = KEEP_OUTPUT) -> None:
        self.install = setup.install
        self._api, self._setup = api, setup
        self._namespace = namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._keep_output = keep_output
        self._hints: set[str] = set()
        self._hinted = asyncio.Event()
        self._informer = Informer(api, self._pods, f"{names.INSTALL}={setup.install}", PodObject, self._hint)
        self._nodes = Nodes(api, self._cordoned)
        self._objects = Objects(api, namespace, setup)
        self.declarations: Declarations | None = WorkerPools(api, namespace, setup.install)
        self._reviews = Reviews(api, namespace, self._knows)
        self._logs = Logs(api, self._pods)
        self._tasks: list[asyncio.Task[None]] = []

    # Reading

    def watch(self) -> None:
        """Start watching pods and nodes. Without a watch, every read of the pods is a full list."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._informer.run()), asyncio.create_task(self._nodes.run())]

    async def pods(self) -> list[Pod]:
        known = self._informer.known() if self._informer.fresh else {}
        if not known:
            # List again even if a watch is alive, because its first list may have been empty by mistake.
            known = (await self._informer.list())[0]
            for pod in known.values():
                self._informer.saw(pod)
        cordoned = await self._nodes.cordoned()
        return [facts(pod, cordoned) for pod in known.values()]

    async def changes(self) -> AsyncIterator[set[str]]:
        self.watch()
        while True:
            await self._hinted.wait()
            self._hinted.clear()
            names_, self._hints = self._hints, set()
            if names_:
                yield names_

    async def read(self, name: str) -> Pod | None:
        pod = await self._read(name)
        return facts(pod, await self._nodes.cordoned()) if pod is not None else None

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        """Returns these pods, mostly from the watch, because one API read per pod change would exceed all our other calls."""
        known = self._informer.known() if self._informer.fresh else {}
        cordoned = await self._nodes.cordoned()
        pods = {name: known.get(name) or await self._read(name) for name in names}
        return {name: facts(pod, cordoned) for name, pod in pods.items() if pod is not None}

    async def _read(self, name: str) -> PodObject | None:
        if not names.NAME.fullmatch(name):
            return None
        try:
            pod = _pod(await self._api.get(f"{self._pods}/{name}"))
        except ApiRefused as refused:
            if refused.code == 404:
                self._informer.note_absent(name)
                return None
            raise ClusterUnavailable(f"the API server refused to show a pod: {refused.status.reason}") from refused
        if not is_ours(pod, self.install):
            return None
        self._informer.saw(pod)
        return pod

    # Creating

    async def create(self, order: Order) -> Pod | Refused:
        if found := template_checks.problems(order.pool.spec, self._setup):
            return Refused("invalid", f"{found[0].field}: {found[0].reason}")
        anchor = await self._objects.anchor(order.pool)
        if isinstance(anchor, Refused):
            return anchor
        manifest = template.manifest(order, self._setup, anchor)
        try:
            pod = _pod(await self._api.post(self._pods, manifest))
        except ApiRefused as refused:
            if refused.code == 409:
                return await self._found(order)
            if refused.code == 404:
                self._objects.forget_anchor(order.pool)
            return refusals.of_create(refused)
        self._informer.wrote(pod)
        return facts(pod, frozenset())

    async def _found(self, order: Order) -> Pod | Refused:
        """Returns the pod that an earlier try of this order created, or Refused if the name belongs to a foreign pod."""
        pod = await self.read(order.name)
        if pod is not None:
            return pod
        try:
            await self._api.get(f"{self._pods}/{order.name}")
        except ApiRefused:
            raise OutcomeUnknown(f"pod {order.name} existed, but was deleted before it could be read") from None
        return Refused("other", f"the name {order.name!r} is taken by a pod that is not this installation's")

    # Protection

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        if not await self._mine(name):
            return None
        known = self._informer.known().get(name)
        before = facts(known, frozenset()).stamp if known is not None and known.metadata.uid == uid else None
        again = before is not None and (before.claim, before.fence) == (stamp.claim, stamp.fence)
        at = before.at if again and before is not None else time.time()
        labels = {names.BUSY: "true", names.OWNER: stamp.tenant, names.CLAIM: stamp.claim, names.FENCE: str(stamp.fence)}
        annotations = template.protection(True) | {names.STAMPED_AT: f"{at:.3f}"}
        # Remove managedFields, a third of the pod's size and of the patch's time, because no other client applies to these pods.
        meta = {"uid": uid, "managedFields": [{}], "labels": labels, "annotations": annotations}
        try:
            pod = _pod(await self._api.patch(f"{self._pods}/{name}", {"metadata": meta}, timeout=PROTECT_SECONDS))
        except ApiRefused as refused:
            if refused.code == 404 or refusals.other_uid(refused):
                return None
            raise ClusterUnavailable(f"the API server refused a protection: {refused.status.reason}") from refused
        self._informer.wrote(pod)
        return facts(pod, await self._nodes.cordoned())

    async def clear(self, name: str, uid: str, version: str) -> bool:
        if not await self._mine(name):
            return False
        labels = dict.fromkeys((names.BUSY, names.OWNER, names.CLAIM, names.FENCE))
        annotations = {names.DO_NOT_DISRUPT: None, names.STAMPED_AT: None, **template.protection(False)}
        meta = {"uid": uid, "resourceVersion": version, "labels": labels, "annotations": annotations}
        try:
            self._informer.wrote(_pod(await self._api.patch(f"{self._pods}/{name}", {"metadata": meta})))
        except ApiRefused as refused:
            if refused.code in (404, 409) or refusals.other_uid(refused):
                return False
            raise ClusterUnavailable(f"the API server refused a change: {refused.status.reason}") from refused
        return True

    async def seal(self, name: str, uid: str) -> None:
        try:
            meta = {"uid": uid, "labels": {names.SEALED: "true"}}
            self._informer.wrote(_pod(await self._api.patch(f"{self._pods}/{name}", {"metadata": meta})))
        except ApiRefused as refused:
            if refused.code != 404 and not refusals.other_uid(refused):
                raise ClusterUnavailable(f"the API server refused a seal: {refused.status.reason}") from refused

    # Ending

    async def delete(self, name: str, uid: str, grace: float) -> None:
        if not await self._mine(name):
            return
        # Never 0, because that removes the pod from the API server while its containers may still run.
        options = {"preconditions": {"uid": uid}, "gracePeriodSeconds": max(1, round(grace)), "propagationPolicy": "Background"}
        try:
            await self._api.delete(f"{self._pods}/{name}", options)
        except ApiRefused as refused:
            if refused.code not in (404, 409):  # 409: another UID
                raise ClusterUnavailable(f"the API server refused a deletion: {refused.status.reason}") from refused

    async def forget(self, name: str, uid: str) -> None:
        known = self._informer.known().get(name) if self._informer.fresh else None
        if known is not None and known.metadata.uid == uid and self._kept_for_output(known) and not is_recorded_later(known):
            return  # every pass calls this until the pod's time is over, so do not read the pod each time
        pod = await self._read(name)
        if pod is None or pod.metadata.uid != uid or not has_ended(pod):
            return
        if not self._kept_for_output(pod):
            if not is_over(pod):
                await self.delete(name, uid, BESIDE_GRACE)  # shortens the grace if the pod was already deleted with a longer one
            elif pod.metadata.deletion_timestamp is None:
                await self.delete(name, uid, 1.0)
        if is_recorded_later(pod):
            await self._remove_finalizer(pod)

    async def _remove_finalizer(self, pod: PodObject) -> None:
        """Remove our finalizer, because the pod's end is recorded. This includes pods kept for their output, so that a node drain
        does not wait for them."""
        rest = [each for each in pod.metadata.finalizers if each != names.FINALIZER]
        body = {"metadata": {"uid": pod.metadata.uid, "finalizers": rest}}
        try:
            left = _pod(await self._api.patch(f"{self._pods}/{pod.metadata.name}", body))
        except ApiRefused as refused:
            if refused.code not in (404, 409) and not refusals.other_uid(refused):
                raise ClusterUnavailable(f"the API server refused to remove a finalizer: {refused.status.reason}") from refused
            self._informer.note_absent(pod.metadata.name)
            return
        if left.metadata.deletion_timestamp is None:
            self._informer.wrote(left)
        else:
            self._informer.note_absent(pod.metadata.name)

    def _kept_for_output(self, pod: PodObject) -> bool:
        """Returns whether the pod is kept because a client may still read its output. A container that never ran has no
        output."""
        if never_ran(pod):
            return False
        keep = self._keep_output if is_over(pod) else min(self._keep_output, KEEP_BESIDE)
        return pod.metadata.deletion_timestamp is None and time.time() - ended_at(pod) < keep

    # Output

    async def output(self, claim: str, worker: str, offset: int, limit: int, reader: str = "") -> Output:
        """Returns output from the log of the worker's container. The log is deleted together with the pod."""
        known = self._informer.known().get(worker) if self._informer.fresh else None
        pod = known or (await self._read(worker) if worker else None)
        return await self._logs.read(pod, offset, limit) if pod is not None else Output(b"", offset, 0)

    async def output_sizes(self) -> dict[str, int]:
        return {}  # the output is the container's log, which the kubelet bounds

    async def prune_output(self, keep: set[str]) -> int:
        return 0  # the output is deleted together with its pod

    # The rest

    async def verify(self, token: str) -> AgentIdentity | None:
        identity = await self._reviews.review(token)
        if identity is None:
            return None
        pod = await self._read(identity.worker)
        if pod is None or pod.metadata.uid != identity.uid or has_ended(pod):
            return None
        return identity

    def _knows(self, name: str, uid: str) -> bool:
        """Returns whether the watch has seen this pod. The answer may be old, so it only decides how a token is reviewed."""
        pod = self._informer.known().get(name)
        return pod is not None and pod.metadata.uid == uid

    async def check(self, pool: Pool) -> list[FieldProblem]:
        if found := template_checks.problems(pool.spec, self._setup):
            return found
        order = Order(worker=f"w-{pool.name}-check", pool=pool, epoch=0)
        manifest = template.manifest(order, self._setup, "00000000-0000-0000-0000-000000000000")
        if manifest["spec"]["serviceAccountName"] == names.account_name(self.install, pool.name):
            manifest["spec"]["serviceAccountName"] = "default"  # the pool's own account is created with its first pod
        return [*await self._objects.check_pod(manifest), *await self._objects.check_policies(pool)]

    async def diagnose(self, pools: Sequence[Pool]) -> list[Finding]:
        return await diagnose(self._api, self._namespace, self.install, pools)

    async def ensure(self, pools: Sequence[Pool]) -> None:
        await self._objects.ensure(pools)

    async def remember(self, mark: Remembered) -> None:
        await self._objects.remember(mark)

    async def remembered(self) -> Remembered | None:
        return await self._objects.remembered()

    async def close(self) -> None:
        await end_all(self._tasks)
        await self._api.close()

    async def _mine(self, name: str) -> bool:
        """Returns whether the pod of this name belongs to this installation. Every write checks this first, because our rights
        cover all pods of the namespace."""
        known = self._informer.known().get(name)
        return known is not None or await self._read(name) is not None

    def _hint(self, changed: set[str]) -> None:
        self._hints |= changed
        self._hinted.set()

    def _cordoned(self, nodes: set[str]) -> None:
        """Report the pods on nodes that became schedulable or unschedulable as changed."""
        self._hint({name for name, pod in self._informer.known().items() if pod.spec.node_name in nodes})


def _pod(content: bytes) -> PodObject:
    try:
        return msgspec.json.decode(content, type=PodObject)
    except msgspec.MsgspecError as error:
        raise ClusterUnavailable(f"the API server's answer cannot be read: {error}") from error
