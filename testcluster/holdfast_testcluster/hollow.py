"""Pods without processes, for tests with many pods. A bound pod is soon reported as running, and a deleted pod ends at once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from holdfast_testcluster.api import STRATEGIC, Api
from holdfast_testcluster.status import Object, PodStatus, Record, now, records_of

log = logging.getLogger("kubelet")
WAITS_WARM = "holdfast-agent"  # an init container of this name stays running, as in a worker that waits for its claim


class HollowPods:
    """Has `seen` and `gone` like real pods. At most `at_once` requests run at the same time, to leave capacity for others."""

    def __init__(self, api: Api, address: Callable[[], str], at_once: int, delay: float) -> None:
        self._api, self._address, self._delay = api, address, delay
        self._limit = asyncio.Semaphore(at_once)
        self._started: set[str] = set()
        self._ending: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def seen(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._ending:
                self._ending.add(uid)
                self._do(self._end(pod))
        elif uid not in self._started:
            self._started.add(uid)
            if "startTime" not in pod.get("status", {}):  # otherwise this kubelet started it before a restart
                self._do(self._start(pod))

    def gone(self, pod: Object) -> None:
        for known in (self._started, self._ending):
            known.discard(pod["metadata"]["uid"])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pod: Object) -> None:
        await asyncio.sleep(self._delay)
        status = PodStatus(records_of(pod["spec"]), self._address())
        for record in status.records:
            if not _pretend(record):
                break
        async with self._limit:
            patch = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status.as_object()}
            answer = await self._api.insist("PATCH", f"{_path(pod)}/status", patch, STRATEGIC)
        if answer.status not in (200, 404, 409, 422):
            log.error("status of %s: %s", _path(pod), answer)

    async def _end(self, pod: Object) -> None:
        async with self._limit:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            await self._api.insist("DELETE", _path(pod), body)


def _pretend(record: Record) -> bool:
    """Sets the container's state without running it. Returns whether the next container may start."""
    running = {"running": {"startedAt": now()}}
    if record.kind == "init" and record.name != WAITS_WARM:
        record.state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}}
        return True
    record.state, record.started = running, True
    record.ready = record.kind != "init"
    return record.kind != "init"


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
