"""A worker's agent without bad habits: it registers, takes a claim, works for as long as the trace says, reports, and ends.

A real agent has a poll open all the time; the server answers it when something changes, and looks by itself every 3 s besides.
This one polls when the notice comes that would have answered it, and every 20 s to be heard: the same answers, far fewer reads.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from ..sim.network import Network
from ..sim.pods import SimResult, WorldPod
from .agenda import Agenda

SPEAK = 20.0  # seconds: the poll of a real agent; silence is noticed after 60


class Defect(Exception):
    """The server answered what it never should to a fleet without faults."""


class PlannedAgent:
    def __init__(self, pod: WorldPod, network: Network, agenda: Callable[[], Agenda]) -> None:
        self.pod = pod
        self.stirred = asyncio.Event()  # a notice named this worker
        self._network = network
        self._agenda = agenda
        self._token = pod.token
        self._reset_fence: int | None = None

    async def run(self) -> int:
        """The container's exit code."""
        body = {"worker": self.pod.name, "uid": self.pod.uid, "version": "plan", "protocol": 1}
        self._token = (await self._say("register", body))["token"]
        while True:
            self.stirred.clear()
            told = await self._poll("idle")
            if told["do"] == "hold":
                if not await self._serve(told["assignment"]):
                    return 0
            elif told["do"] == "exit" or self.pod.asked.is_set():
                return 0
            else:
                await self._stir()

    async def _serve(self, assignment: dict[str, Any]) -> bool:
        """Whether it can serve another: it was parked."""
        fence = assignment["fence"]
        await self._say("ack", {"fence": fence, "endpoint": "http://here"})
        if self.pod.spec.mode == "job":
            await self._work(assignment)
            self.pod.result = SimResult(assignment["claim"], fence, 0)
            await self._say("result", {"fence": fence, "exit_code": 0})
            return False
        while (told := await self._poll("running", assignment))["do"] != "end":
            await self._stir()
            self.stirred.clear()
        self._reset_fence = fence
        return bool(told.get("park"))

    async def _work(self, assignment: dict[str, Any]) -> None:
        done = self._agenda().after(assignment["payload"]["seconds"])
        while not done.done():
            await asyncio.wait([done], timeout=SPEAK)
            if not done.done():
                await self._poll("running", assignment)

    async def _stir(self) -> None:
        try:
            async with asyncio.timeout(SPEAK):
                await self.stirred.wait()
        except TimeoutError:
            return

    async def _poll(self, doing: str, held: dict[str, Any] | None = None) -> dict[str, Any]:
        word = {name: (held or {}).get(name) for name in ("claim", "fence", "tenant", "credential")}
        said = {"doing": doing, **word, "reset_fence": self._reset_fence, "endpoint": None, "wait": 0}
        answer: dict[str, Any] = await self._say("poll", said)
        return answer

    async def _say(self, verb: str, body: dict[str, Any]) -> Any:
        answer = await self._network.call("POST", f"/v1/worker/{verb}", self._token, body)
        if answer.status >= 300:
            raise Defect(f"{self.pod.name}: {verb} was answered {answer.status}: {answer.body}")
        return answer.body
