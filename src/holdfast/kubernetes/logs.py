"""Read a container's log in pieces. The API server sends a log only from its beginning, so we cache what we read."""

import asyncio
import time

import msgspec

from ..ports.cluster import Output
from .api import Api, ApiRefused
from .shapes import PodObject, has_ended

LOG_LIMIT = 8 * 1024 * 1024  # bytes of one claim's output that can be read
KEPT = 64 * 1024 * 1024  # bytes in the cache
MOST = 1000  # logs in the cache
RATE = 1024 * 1024  # bytes per second that following one log may cost the API server, however long the log is
AT_ONCE = 8  # logs read at the same time, because protections share these connections


class Log(msgspec.Struct):
    data: bytes = b""
    read_at: float = float("-inf")
    whole: bool = False  # read after its container had ended, so it is complete
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class Logs:
    def __init__(self, api: Api, pods: str) -> None:
        self._api, self._pods = api, pods
        self._kept: dict[str, Log] = {}  # by the pod's UID, the most recently read last
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def read(self, pod: PodObject, offset: int, limit: int) -> Output:
        uid = pod.metadata.uid
        log = self._kept[uid] = self._kept.pop(uid, Log())
        async with log.lock:
            if offset + limit > len(log.data) and _may_have_grown(pod, log):
                await self._read(pod, log)
                self._make_room(uid)
        return Output(log.data[offset : offset + limit], offset, len(log.data), truncated=len(log.data) >= LOG_LIMIT)

    async def _read(self, pod: PodObject, log: Log) -> None:
        over = has_ended(pod)
        params = {"container": pod.worker_container, "limitBytes": str(LOG_LIMIT)}
        async with self._gate:
            try:
                data = await self._api.get(f"{self._pods}/{pod.metadata.name}/log", params)
            except ApiRefused:  # not started yet, or lost with its node: keep what we have
                return
        if len(data) >= len(log.data):  # a log that the kubelet rotated is shorter
            log.data = data
        log.read_at, log.whole = time.monotonic(), over

    def _make_room(self, reading: str) -> None:
        total = sum(len(log.data) for log in self._kept.values())
        for uid in [uid for uid in self._kept if uid != reading]:
            if total <= KEPT and len(self._kept) <= MOST:
                return
            total -= len(self._kept.pop(uid).data)


def _may_have_grown(pod: PodObject, log: Log) -> bool:
    if log.whole or len(log.data) >= LOG_LIMIT:
        return False
    return has_ended(pod) or len(log.data) < RATE or time.monotonic() - log.read_at > len(log.data) / RATE
