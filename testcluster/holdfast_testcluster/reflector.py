"""Follows the pods that are bound to nodes: lists, watches, and lists again when the watch is lost."""

import asyncio
import logging
from collections.abc import Callable

from holdfast_testcluster.api import AGAIN_AFTER, UNREACHABLE, Api, Expired, Object

log = logging.getLogger("kubelet")


class PodReflector:
    """Calls `seen` for every state of a pod, and `gone` when it does not exist any more. Both must not block."""

    def __init__(self, api: Api, namespace: str | None, seen: Callable[[Object], None], gone: Callable[[Object], None]) -> None:
        self._api, self._seen, self._gone = api, seen, gone
        self._path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        self._known: dict[str, Object] = {}  # by UID
        self.synced = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                version = await self._list()
                self.synced.set()
                while True:
                    version = await self._watch(version)
            except Expired as error:
                log.info("watch expired (%s): listing again", error)
            except UNREACHABLE as error:
                log.info("API server not reached (%r): listing again", error)
                await asyncio.sleep(AGAIN_AFTER)

    async def _list(self) -> str:
        answer = await self._api.insist("GET", f"{self._path}?fieldSelector=spec.nodeName!%3D")
        assert answer.status == 200, answer
        now = {pod["metadata"]["uid"]: pod for pod in answer.body["items"]}
        for uid in self._known.keys() - now.keys():  # deleted while there was no watch
            self._forget(self._known[uid])
        for pod in now.values():
            self._remember(pod)
        version: str = answer.body["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        async for event in self._api.watch(self._path, {"fieldSelector": "spec.nodeName!=", "resourceVersion": version}):
            pod = event["object"]
            version = pod["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._forget(pod)
            elif event["type"] != "BOOKMARK":
                self._remember(pod)
        return version

    def _remember(self, pod: Object) -> None:
        self._known[pod["metadata"]["uid"]] = pod
        self._seen(pod)

    def _forget(self, pod: Object) -> None:
        self._known.pop(pod["metadata"]["uid"], None)
        self._gone(pod)
