"""The simulated agent of a worker, without faults: it registers, takes a claim, works for the time in the trace, and reports.

A real agent always has a poll open. The server answers it when something changes, and also reads the database every 3 s.
The simulated agent polls when the notice comes that would have answered the real poll, and every 20 s to show that it lives.
It gets the same answers with far fewer reads.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from ..sim.network import Network
from ..sim.pods import SimResult, WorldPod
from .agenda import Agenda

POLL_SECONDS = 20.0  # seconds; the length of a real agent's poll. The server notices silence after 60 s


class Defect(Exception):
    """The server gave an answer that it must never give to a fleet without faults."""


class PlannedAgent:
    def __init__(self, pod: WorldPod, network: Network, agenda: Callable[[], Agenda]) -> None:
        self.pod = pod
        self.noticed = asyncio.Event()  # set when a notice names this worker
        self._network = network
        self._agenda = agenda
        self._token = pod.token
        self._served_fence: int | None = None

    async def run(self) -> int:
        """Runs the agent and returns the container's exit code."""
        body = {"worker": self.pod.name, "uid": self.pod.uid, "version": "plan", "protocol": 1}
        self._token = (await self._call("register", body))["token"]
        while True:
            self.noticed.clear()
            directive = await self._poll("idle")
            if directive["do"] == "hold":
                if not await self._serve(directive["assignment"]):
                    return 0
            elif directive["do"] == "exit" or self.pod.sigterm.is_set():
                return 0
            else:
                await self._wait_for_notice()

    async def _serve(self, assignment: dict[str, Any]) -> bool:
        """Serves one claim. Returns whether the worker was parked, so that it can serve another claim."""
        fence = assignment["fence"]
        await self._call("ack", {"fence": fence, "endpoint": "http://here"})
        if self.pod.spec.mode == "job":
            await self._work(assignment)
            self.pod.result = SimResult(assignment["claim"], fence, 0)
            await self._call("result", {"fence": fence, "exit_code": 0})
            return False
        while (directive := await self._poll("running", assignment))["do"] != "end":
            await self._wait_for_notice()
            self.noticed.clear()
        self._served_fence = fence
        return bool(directive.get("park"))

    async def _work(self, assignment: dict[str, Any]) -> None:
        done = self._agenda().after(assignment["payload"]["seconds"])
        while not done.done():
            await asyncio.wait([done], timeout=POLL_SECONDS)
            if not done.done():
                await self._poll("running", assignment)

    async def _wait_for_notice(self) -> None:
        """Waits for a notice, at most until the next poll is due."""
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self.noticed.wait()
        except TimeoutError:
            return

    async def _poll(self, doing: str, held: dict[str, Any] | None = None) -> dict[str, Any]:
        claim = {name: (held or {}).get(name) for name in ("claim", "fence", "tenant", "credential")}
        report = {"doing": doing, **claim, "reset_fence": self._served_fence, "endpoint": None, "wait": 0}
        answer: dict[str, Any] = await self._call("poll", report)
        return answer

    async def _call(self, verb: str, body: dict[str, Any]) -> Any:
        answer = await self._network.call("POST", f"/v1/worker/{verb}", self._token, body)
        if answer.status >= 300:
            raise Defect(f"{self.pod.name}: {verb} was answered {answer.status}: {answer.body}")
        return answer.body
