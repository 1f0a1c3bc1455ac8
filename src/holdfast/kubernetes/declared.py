"""Read WorkerPool objects, keep them until their drain is stored, and write their pools' status to them."""

import re
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..model.shown import shown_lines
from ..ports.cluster import ClusterUnavailable
from ..ports.declared import Condition, Declared, DeclaredStatus
from . import names
from .api import Api, ApiRefused
from .shapes import Metadata

GROUP = f"{names.DOMAIN}/v1alpha1"
DRAIN = f"{names.DOMAIN}/drain"  # our finalizer, which keeps the object until its drain is stored in Postgres
DEFAULT = "holdfast"  # the installation to which objects without a label belong
OLDER = 10  # seconds; a smaller change of the oldest claim's age is not written, because it changes all the time
AGAIN = 600.0  # seconds until the same event is posted again, because a pool under load often changes between ready and not ready
PASSING = re.compile(r"\bw-\S+|\d+")  # workers' names and counts, which differ in every message


class StoredCondition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition as stored in the object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""

    def differs(self, now: Condition) -> bool:
        """Returns whether the change deserves an event. A message that differs only in its counts or worker names does not."""
        if (self.status, self.reason) != (str(now.status), now.reason):
            return True
        return now.type == "Degraded" and _without_counts(self.message) != _without_counts(now.message)


class PoolObject(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class PoolObjects(msgspec.Struct, frozen=True):
    items: list[PoolObject] = []


class WorkerPools:
    def __init__(self, api: Api, namespace: str, install: str) -> None:
        self._api, self._namespace, self._install = api, namespace, install
        self._path = f"/apis/{GROUP}/namespaces/{namespace}/workerpools"
        self._known: dict[str, PoolObject] = {}  # as last listed, by UID
        self._posted: dict[tuple[str, ...], float] = {}  # recent events, and when they were posted

    async def list(self) -> list[Declared] | None:
        try:
            content = await self._api.get(self._path, timeout=30.0)
        except ApiRefused as refused:
            if refused.code == 404:
                return None  # the CRD is not installed, which does not mean that all pools were deleted
            raise ClusterUnavailable(f"the API server refused a list: {refused.status.reason}") from refused
        found = [item for item in _decoded(content, PoolObjects).items if self._ours(item)]
        self._known = {item.metadata.uid: item for item in found}
        return [_declared(item) for item in found]

    async def absent(self, name: str, uid: str) -> bool:
        try:
            found = _decoded(await self._api.get(f"{self._path}/{name}"), PoolObject)
            return bool(found.metadata.uid != uid or not self._ours(found))  # absent for us if relabelled to another installation
        except ApiRefused as refused:
            if refused.code != 404:
                raise ClusterUnavailable(f"the API server refused to show a pool: {refused.status.reason}") from refused
        # A missing CRD answers 404 too, so check that the CRD exists.
        return await self.list() is not None

    async def guard(self, declared: Declared) -> None:
        await self._finalizers(declared, add=True)

    async def release(self, declared: Declared) -> None:
        await self._finalizers(declared, add=False)

    async def _finalizers(self, declared: Declared, *, add: bool) -> None:
        known = self._known.get(declared.uid)
        others = [each for each in (known.metadata.finalizers if known else []) if each != DRAIN]
        meta = {"uid": declared.uid, "finalizers": [*others, DRAIN] if add else others}
        if known is not None:
            meta["resourceVersion"] = known.metadata.resource_version  # so that a change of other finalizers is not overwritten
        await self._patch(declared.name, {"metadata": meta})

    async def update_status(self, declared: Declared, status: DeclaredStatus) -> None:
        known = self._known.get(declared.uid)
        before = known.status if known else {}
        stored = {each.type: each for each in msgspec.convert(before.get("conditions", []), list[StoredCondition])}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions, news = [], []
        for condition in status.conditions:
            value, old = str(condition.status), stored.get(condition.type)
            if old is None or old.differs(condition):
                news.append(condition)
            since = old.last_transition_time if old is not None and old.status == value else now
            conditions.append(
                {
                    "type": condition.type,
                    "status": value,
                    "reason": condition.reason,
                    "message": shown_lines(condition.message),
                    "lastTransitionTime": since,
                    "observedGeneration": status.generation,
                }
            )
        body = _counts(status) | {"selector": f"{names.POOL_ID}={declared.pool_id}", "conditions": conditions}
        if _same(before, body):
            return
        await self._patch(f"{declared.name}/status", {"metadata": {"uid": declared.uid}, "status": body})
        for condition in news:
            bad = condition.status == (condition.type != "Ready")
            if (bad or condition.type in stored) and self._is_due(declared, condition):  # healthy from the start is no event
                await self._event(declared, condition.reason, condition.message, warning=bad)

    def _is_due(self, declared: Declared, condition: Condition) -> bool:
        now = time.monotonic()
        self._posted = {event: at for event, at in self._posted.items() if now - at < AGAIN}
        event = declared.uid, condition.type, condition.reason, _without_counts(condition.message)
        if event in self._posted:
            return False
        self._posted[event] = now
        return True

    async def _event(self, declared: Declared, reason: str, message: str, *, warning: bool) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {"name": f"{declared.name}.{time.time_ns():x}", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": GROUP,
                "kind": "WorkerPool",
                "namespace": self._namespace,
                "name": declared.name,
                "uid": declared.uid,
            },
            "reason": reason,
            "message": shown_lines(message)[:1024],
            "type": "Warning" if warning else "Normal",
            "source": {"component": "holdfast"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.post(f"/api/v1/namespaces/{self._namespace}/events", body)
        except ApiRefused as refused:
            raise ClusterUnavailable(f"an event was refused: {refused.status.reason}") from refused

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        try:
            await self._api.patch(f"{self._path}/{path}", body)
        except ApiRefused as refused:
            gone = refused.code == 404 or (refused.code == 422 and any(c.field == "metadata.uid" for c in refused.status.causes))
            if not gone and refused.code != 409:  # on 409 the object changed meanwhile, and the next pass reads it again
                raise ClusterUnavailable(f"a change of a WorkerPool was refused: {refused.status.message[:200]}") from refused

    def _ours(self, item: PoolObject) -> bool:
        return item.metadata.labels.get(names.INSTALL, DEFAULT) == self._install


def _declared(item: PoolObject) -> Declared:
    meta = item.metadata
    return Declared(
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        spec=item.spec,
        deleting=meta.deletion_timestamp is not None,
        guarded=DRAIN in meta.finalizers,
    )


def _without_counts(message: str) -> str:
    return PASSING.sub("", message)


def _counts(status: DeclaredStatus) -> dict[str, Any]:
    return {
        "observedGeneration": status.generation,
        "revision": status.revision,
        "desired": status.desired,
        "free": status.free,
        "spawning": status.spawning,
        "warm": status.warm,
        "held": status.held,
        "parked": status.parked,
        "retiring": status.retiring,
        "waiting": status.waiting,
        "oldestWaitingSeconds": status.oldest_waiting,
    }


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    oldest = "oldestWaitingSeconds"
    near = abs(int(before.get(oldest) or 0) - int(now[oldest])) < OLDER and bool(before.get(oldest)) == bool(now[oldest])
    return near and {**before, oldest: 0} == {**now, oldest: 0}


def _decoded(content: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ClusterUnavailable(f"the API server's answer cannot be read: {error}") from error
