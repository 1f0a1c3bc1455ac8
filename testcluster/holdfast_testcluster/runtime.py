"""Runs one pod: init containers one after another, sidecars, main containers, and its end. Reports to the API server."""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path

from holdfast_testcluster.api import STRATEGIC, Api
from holdfast_testcluster.container import PULL_AGAIN_AFTER, Container, Deadline, PodPlace
from holdfast_testcluster.fields import FieldProblem
from holdfast_testcluster.images import Images
from holdfast_testcluster.records import recall
from holdfast_testcluster.status import Object, PodStatus, records_of, settle
from holdfast_testcluster.volumes import VolumeProblem, Volumes

log = logging.getLogger("kubelet")
SIDECARS_AT_LEAST = 2.0  # seconds that sidecars get to end, even if the main containers used the whole grace period
STATUSES = ("initContainerStatuses", "containerStatuses")
# seconds before each restart; those of a real kubelet are ten times longer, except for the first
BACKOFF = (0.0, 1.0, 2.0, 4.0, 8.0)


class PodRun:
    """`seen` and `gone` pass on what the API server reports about the pod. Everything else happens in `main`."""

    def __init__(self, pod: Object, api: Api, images: Images, address: str, folder: Path, env: dict[str, str]) -> None:
        self._api = api
        self.pod = pod
        meta = pod["metadata"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.uid: str = meta["uid"]
        self._folder = folder / "pods" / self.uid
        self._volumes = Volumes(api, pod, address, self._folder / "volumes")
        self.status = PodStatus(records_of(pod["spec"]), address)
        self._dirty, self._to_end, self._gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        place = PodPlace(pod, address, self._folder, self._volumes, images, api, env)
        self.containers = [Container(each, place, self._dirty.set) for each in self.status.records]
        self._keepers: list[asyncio.Task[None]] = []  # tasks that run sidecars
        self._deadline: Deadline | None = None
        self._reported: Object | None = None
        self._reporting = asyncio.Lock()
        self._first_status: Object = pod.get("status", {})
        self._known = self._first_status  # the API server's status at the last change that this kubelet received

    # Reports of the API server

    def seen(self, pod: Object) -> None:
        """Stores the new state. A deletion may come at any time, and a second deletion may shorten the grace period."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._end_within(pod["metadata"].get("deletionGracePeriodSeconds", 30))

    def gone(self) -> None:
        """Handles that the object is deleted, by force or by this kubelet."""
        self._gone.set()
        self._end_within(0)

    def _end_within(self, seconds: float) -> None:
        if not self._to_end.is_set():
            self._known = self.pod.get("status", {})
        if self._deadline is None:
            self._deadline = Deadline(seconds)
        else:
            self._deadline.within(seconds)
        self._to_end.set()

    # Run

    async def main(self) -> None:
        """Runs the pod from its first report until its object is deleted."""
        reporter = asyncio.create_task(self._report_changes())
        try:
            if self._has_lived():
                self._recall()
            else:
                await self._live_until_told()
            if not self._was_over:
                self.status.over = True
                settle(self.status.records, self._known)
                self._dirty.set()
            await self._to_end.wait()  # an ended pod and its logs stay until the pod is deleted
            await self._bury()
        finally:
            reporter.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _live_until_told(self) -> None:
        living, asked_to_end = asyncio.create_task(self._live()), asyncio.create_task(self._to_end.wait())
        await asyncio.wait({living, asked_to_end}, return_when=asyncio.FIRST_COMPLETED)
        asked_to_end.cancel()
        living.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await living
        await self._stop()

    async def _live(self) -> None:
        """Runs the pod until the main containers have ended, or an init container has failed for good."""
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        refresher: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(seconds):
                self._dirty.set()
                await self._make_volumes()
                refresher = asyncio.create_task(self._volumes.refresh_tokens())
                if await self._initialize():
                    await asyncio.gather(*(self._keep(each) for each in self.containers if each.record.kind == "main"))
        except TimeoutError:
            self.status.reason = "DeadlineExceeded"
            self.status.message = "Pod was active on the node longer than the specified deadline"
        finally:
            if refresher:
                refresher.cancel()

    async def _make_volumes(self) -> None:
        while True:
            try:
                await self._volumes.make()
                return
            except (VolumeProblem, FieldProblem) as problem:
                self.containers[0].wait_for("ContainerCreating", str(problem))
                await asyncio.sleep(PULL_AGAIN_AFTER)

    async def _initialize(self) -> bool:
        for each in self.containers:
            if each.record.kind == "sidecar":
                self._keepers.append(asyncio.create_task(self._keep(each)))
                await each.up.wait()
            elif each.record.kind == "init":
                await self._keep(each)
                if each.record.exit_code != 0:
                    return False
        return True

    async def _keep(self, container: Container) -> None:
        """Runs a container, and restarts it as the restart policy requires."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if container.record.kind == "sidecar":
            policy = "Always"
        elif container.record.kind == "init" and policy == "Always":
            policy = "OnFailure"
        while True:
            code = await container.run()
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                return
            wait = BACKOFF[min(container.record.restarts, len(BACKOFF) - 1)]
            if wait:
                container.pause(wait)
                await asyncio.sleep(wait)

    # End

    async def _stop(self) -> None:
        """Stops the main containers first, then the sidecars in reverse order."""
        if self._deadline is None:
            self._deadline = Deadline(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        for keeper in self._keepers:
            keeper.cancel()
        for keeper in self._keepers:
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        await asyncio.gather(*(each.stop(self._deadline) for each in self.containers if each.record.kind != "sidecar"))
        for each in reversed([each for each in self.containers if each.record.kind == "sidecar"]):
            late = self._deadline.past and not self._gone.is_set()
            await each.stop(Deadline(SIDECARS_AT_LEAST) if late else self._deadline)

    async def _bury(self) -> None:
        """Sends the last status before it deletes the object, so that a client that waits for the result gets it."""
        if not self._was_over:
            await self._report()
        if not self._gone.is_set():
            await self._api.insist("DELETE", self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}})
            await self._gone.wait()

    # After a reboot of the node

    @property
    def _was_over(self) -> bool:
        return self._first_status.get("phase") in ("Succeeded", "Failed")

    def _has_lived(self) -> bool:
        """Returns whether the pod ran before a reboot and must not start again. A pod that may be restarted starts again."""
        reported = [each for key in STATUSES for each in self._first_status.get(key) or []]
        ran = any("waiting" not in each["state"] for each in reported)
        return self._was_over or (ran and self.pod["spec"].get("restartPolicy") == "Never")

    def _recall(self) -> None:
        """Restores the records of a pod that does not start again.

        A real kubelet leaves the pod Pending if its last init container succeeded.
        """
        reported = {each["name"]: each for key in STATUSES for each in self._first_status.get(key) or []}
        for each in self.containers:
            recall(each, reported.get(each.record.name, {}))
        self.status.start_time = self._first_status.get("startTime", self.status.start_time)

    # Reports to the API server

    async def _report_changes(self) -> None:
        while not self._gone.is_set():
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._report()
            except Exception:
                log.exception("status of %s", self._path)  # a bug of this kubelet; the next report may succeed

    async def _report(self) -> None:
        async with self._reporting:  # so that an older report does not overtake a newer one
            status = self.status.as_object()
            if status == self._reported or self._gone.is_set():
                return
            patch = {"metadata": {"uid": self.uid}, "status": status}
            answer = await self._api.insist("PATCH", f"{self._path}/status", patch, STRATEGIC)
            if answer.status == 200:
                self._reported = status
            elif answer.status not in (404, 409):  # both mean that the pod is gone
                another = answer.status == 422 and "metadata.uid" in str(answer.body)  # another pod has its name
                assert another, f"status of {self._path}: {answer}"
