"""Registers Node objects, keeps them Ready, and removes them again."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from holdfast_testcluster.api import STRATEGIC, UNREACHABLE, Api, Object

log = logging.getLogger("kubelet")
NAMESPACE_KEY = "kube.test/namespace"  # label and taint of nodes that serve one namespace only
AT_ONCE = 16


@dataclass(frozen=True)
class NodeShape:
    """The properties that all nodes of a kubelet share."""

    capacity: dict[str, str] = field(default_factory=lambda: {"cpu": "32", "memory": "64Gi", "pods": "110"})
    labels: dict[str, str] = field(default_factory=dict)
    namespace: str | None = None  # if set, only pods of this namespace can run here
    heartbeat: float = 10.0  # seconds; no controller needs the heartbeat, but people look at it


class Nodes:
    def __init__(self, api: Api, names: list[str], shape: NodeShape, log_port: int, version: str) -> None:
        self._api, self._shape, self._log_port, self._version = api, shape, log_port, version
        self.names = names

    async def register(self) -> None:
        """Creates the nodes, or takes over those that this kubelet created before a restart."""
        await self._each(self._register)

    async def heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._shape.heartbeat)
            try:
                await self._each(self._beat)
            except UNREACHABLE as error:
                log.info("no heartbeat: %r", error)

    async def remove(self) -> None:
        async def delete(name: str) -> None:
            await self._api.request("DELETE", f"/api/v1/nodes/{name}")

        await self._each(delete)

    async def _register(self, name: str) -> None:
        answer = await self._api.insist("POST", "/api/v1/nodes", self._object(name))
        assert answer.status in (201, 409), answer
        # Every new node gets the taint "not ready". The controller that removes this taint does not run here.
        taints = (
            [{"key": NAMESPACE_KEY, "value": self._shape.namespace, "effect": "NoSchedule"}] if self._shape.namespace else None
        )
        patch = {"spec": {"taints": taints}}
        answer = await self._api.insist("PATCH", f"/api/v1/nodes/{name}", patch, "application/merge-patch+json")
        assert answer.status == 200, answer
        await self._beat(name)

    async def _beat(self, name: str) -> None:
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "test kubelet",
            "lastHeartbeatTime": now(),
        }
        status = {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._log_port}},
            "capacity": self._shape.capacity,
            "allocatable": self._shape.capacity,
            "nodeInfo": dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"), "test")
            | {"containerRuntimeVersion": "test://1", "kubeletVersion": self._version, "kubeProxyVersion": ""}
            | {"operatingSystem": "linux", "architecture": "amd64"},
        }
        await self._api.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC)

    def _object(self, name: str) -> Object:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        if self._shape.namespace:
            labels[NAMESPACE_KEY] = self._shape.namespace
        return {"metadata": {"name": name, "labels": labels | self._shape.labels}}

    async def _each(self, act: Callable[[str], Awaitable[None]]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> None:
            async with limit:
                await act(name)

        await asyncio.gather(*(one(name) for name in self.names))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
