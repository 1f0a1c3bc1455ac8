"""Simulate an agent that uses the worker protocol and has faults (habits) that the seed chooses."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

from .book import Book, Broken
from .network import Network
from .pods import SimResult, WorldPod
from .process import SimResponse, Unreachable

GIVE_UP = 600.0  # seconds without an answer of any replica after which a free agent exits
STEPS = ("registered", "delivered", "activated", "acknowledged", "done", "stored", "reported")


class Crash(Exception):
    """The agent dies here, without a report."""


class Habits:
    """How this agent behaves."""

    def __init__(self, source: random.Random, bad: float) -> None:
        self.boot = source.uniform(0.05, 2.0)
        self.activation = source.choice((0.0, 0.1, 0.5, 2.0, 20.0 if source.random() < bad else 1.0))
        self.hangs = source.random() < bad / 2  # in activation, without progress or acknowledgement
        self.refuses = source.random() < bad / 2
        self.crash_at = source.choice(STEPS) if source.random() < bad else None
        self.reports_twice = source.random() < bad
        self.reset = source.uniform(0.05, 3.0)
        self.reset_fails = source.random() < bad
        self.lets_go_after = source.choice((0.0, source.uniform(1, 120))) if source.random() < bad else 0.0


class SimAgent:
    def __init__(
        self, pod: WorldPod, network: Network, book: Book, source: random.Random, bad: float, hook_fails: Callable[[], bool]
    ) -> None:
        self.pod = pod
        self._hook_fails = hook_fails
        self._network = network
        self._book = book
        self._source = source
        self._habits = Habits(source, bad)
        self._token = ""
        self._doing = "idle"
        self._assignment: dict[str, Any] | None = None
        self._highest = 0
        self._served_fence: int | None = None
        self._incarnation = 0
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()  # set when the server ended the claim that it holds
        self._park = False
        self._exit: int | None = None
        self._work: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Run the agent, and return the container's exit code."""
        try:
            await asyncio.sleep(self._habits.boot)
            await self._register()
            self._step("registered")
            return await self._life()
        except Crash:
            return 1
        finally:
            self._book.stopped(self.pod)
            if self._work is not None:
                self._work.cancel()

    async def _life(self) -> int:
        answered_at = _now()
        pause = 0.2
        while self._exit is None:
            if self._work is not None and self._work.done():
                self._work.result()  # raises its Crash here
            if self.pod.sigterm.is_set() and self._assignment is None and not self.pod.stubborn:
                return 0
            try:
                answer = await self._poll()
            except Unreachable:
                answer = None
            if answer is not None and answer.status == 200:
                answered_at, pause = _now(), 0.2
                self._incarnation = answer.body.get("incarnation", self._incarnation)
                self._obey(answer.body)
                continue
            if answer is not None and answer.status == 401:
                await self._register()
            if answer is not None and answer.status == 204:
                continue  # the agent's state changed, so poll again with the new state
            if self._assignment is None and _now() - answered_at > GIVE_UP:
                return 0
            await asyncio.sleep(pause * self._source.uniform(0.5, 1.5))
            pause = min(pause * 2, 10.0)
        return self._exit

    async def _poll(self) -> SimResponse:
        """Poll once. The poll is cancelled with status 204 if the agent's own state changes meanwhile."""
        self._changed.clear()
        asking = asyncio.ensure_future(self._call("poll", self._word()))
        changed = asyncio.ensure_future(self._changed.wait())
        terminated = asyncio.ensure_future(self.pod.sigterm.wait()) if not self.pod.sigterm.is_set() else None
        waits: list[asyncio.Future[Any]] = [asking, changed, *([terminated] if terminated else [])]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else SimResponse(204, None)
        finally:
            for wait in waits:
                if not wait.done():
                    wait.cancel()

    def _word(self) -> dict[str, Any]:
        held = self._assignment or {}
        doing = "draining" if self.pod.sigterm.is_set() and not self.pod.stubborn else self._doing
        fields = {name: held.get(name) for name in ("claim", "fence", "tenant", "credential")}
        return {"doing": doing, **fields, "reset_fence": self._served_fence, "incarnation": self._incarnation, "wait": 20}

    def _obey(self, directive: dict[str, Any]) -> None:
        if directive["do"] == "exit":
            if self._assignment is not None and self.pod.uid in self._book.doing:
                raise Broken("P2", f"{self.pod.name} gets the directive `exit` while it works for {self._assignment['claim']}")
            self._exit = 0
        elif directive["do"] == "end" and self._assignment is not None and directive.get("fence") == self._assignment["fence"]:
            self._park = bool(directive.get("park"))
            self._ended.set()
        elif directive["do"] == "hold" and self._assignment is None:
            self._take(directive["assignment"])

    def _take(self, assignment: dict[str, Any]) -> None:
        if assignment["fence"] <= self._highest or self.pod.sigterm.is_set():
            return
        self._book.delivered(self.pod, assignment["tenant"], assignment["claim"])
        self._step("delivered")
        self._assignment, self._highest, self._doing = assignment, assignment["fence"], "activating"
        self._ended.clear()
        self._work = asyncio.ensure_future(self._serve(assignment))

    async def _serve(self, assignment: dict[str, Any]) -> None:
        fence = assignment["fence"]
        if not await self._activate(assignment):
            self._exit = self._exit or 1  # it knows a tenant's assignment now, so it cannot serve another tenant
            self._changed.set()
            return
        self._step("acknowledged")
        again = bool((assignment["payload"] or {}).get("retry"))
        self._book.started(self.pod, assignment["claim"], fence, _now(), again=again)
        self._doing = "running"
        self._changed.set()
        if self.pod.spec.mode == "job":
            await self._job(assignment)
        else:
            await self._ended.wait()
            await asyncio.sleep(self._habits.lets_go_after)  # until then it holds an old fence
            self._book.stopped(self.pod)
            await self._reset(fence)

    async def _activate(self, assignment: dict[str, Any]) -> bool:
        """Activate and acknowledge. Returns whether the worker still has the claim afterwards."""
        fence, payload = assignment["fence"], assignment["payload"] or {}
        if self._habits.hangs:
            await self._ended.wait()
            return False
        left = self._habits.activation
        while left > 0:
            await asyncio.sleep(min(left, 3.0))
            left -= 3.0
            with contextlib.suppress(Unreachable):
                if (await self._call("progress", {"fence": fence})).status == 409:
                    return False
        if self._habits.refuses or payload.get("bad") or self._hook_fails():
            await self._until_answered("refuse", {"fence": fence, "reason": "simulated", "output": "the hook's last line"})
            self._exit = 1
            return False
        self._step("activated")
        body = {"fence": fence, "endpoint": "http://here", "incarnation": self._incarnation}
        return await self._until_answered("ack", body) == 200

    async def _job(self, assignment: dict[str, Any]) -> None:
        claim, fence, payload = assignment["claim"], assignment["fence"], assignment["payload"] or {}
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), payload.get("seconds", 1.0))
        code = 143 if self._ended.is_set() else payload.get("exit", 0)
        self._book.stopped(self.pod)
        self._step("done")
        self._book.results[claim, fence] = code
        self.pod.result = SimResult(claim, fence, code)
        self._step("stored")
        for _ in range(2 if self._habits.reports_twice else 1):
            await self._until_answered("result", {"fence": fence, "exit_code": code})
        self._step("reported")
        self._exit = 0
        self._changed.set()

    async def _reset(self, fence: int) -> None:
        if not self._park:
            self._exit = 0
            self._changed.set()
            return
        self._assignment, self._doing, self._served_fence = None, "resetting", fence
        self._changed.set()
        await asyncio.sleep(self._habits.reset)
        if self._habits.reset_fails:
            await self._until_answered("failed", {"reason": "simulated: reset exited with 1"})
            self._exit = 1
        else:
            self._doing = "idle"
        self._changed.set()

    async def _until_answered(self, verb: str, body: dict[str, Any]) -> int:
        pause = 0.2
        while True:
            with contextlib.suppress(Unreachable):
                answer = await self._call(verb, body)
                if answer.status == 401:
                    await self._register()
                elif answer.status < 500:
                    return answer.status
            await asyncio.sleep(pause * self._source.uniform(0.5, 1.5))
            pause = min(pause * 2, 10.0)

    async def _register(self) -> None:
        pause, began = 0.2, _now()
        body = {"worker": self.pod.name, "uid": self.pod.uid, "version": "sim", "protocol": 1}
        while True:
            with contextlib.suppress(Unreachable):
                answer = await self._network.call("POST", "/v1/worker/register", self.pod.token, body, lambda: self.pod.cut)
                if answer.status == 200:
                    self._token = answer.body["token"]
                    return
            if self._assignment is None and (_now() - began > GIVE_UP or self.pod.sigterm.is_set()):
                raise Crash
            await asyncio.sleep(pause * self._source.uniform(0.5, 1.5))
            pause = min(pause * 2, 10.0)

    async def _call(self, verb: str, body: dict[str, Any]) -> SimResponse:
        return await self._network.call("POST", f"/v1/worker/{verb}", self._token, body, lambda: self.pod.cut)

    def _step(self, name: str) -> None:
        if self._habits.crash_at == name:
            raise Crash


def _now() -> float:
    return asyncio.get_running_loop().time()
