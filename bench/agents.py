"""Hollow agents: they follow the worker protocol (docs/worker-protocol.md) and run nothing. One process holds many of them.

`python -m bench.agents PORT JOB_SECONDS` reads one JSON line per order from standard input, `{"start": [worker, uid, token]}` or
`{"stop": uid}`, and prints `{"ended": uid}` when an agent has ended. It ends when standard input ends.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
from typing import Any

import uvloop

from .line import Line

POLL_SECONDS = 20
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two tries of a call that failed
ENDPOINT = "http://127.0.0.1:9"  # no benchmark connects to it


class Agent:
    """One worker's agent, from its registration to its exit."""

    def __init__(self, port: int, job_seconds: float, worker: str, uid: str, token: str) -> None:
        self._poll_line, self._call_line = Line(port), Line(port)
        self._job_seconds = job_seconds
        self._worker, self._uid, self._bootstrap = worker, uid, token
        self._token = ""
        self._mode = ""
        self._served_fence: int | None = None

    async def run(self) -> None:
        try:
            registered = await self._until_accepted(
                self._poll_line, "register", {"worker": self._worker, "uid": self._uid, "version": "bench", "protocol": 1}
            )
            self._token, self._mode = registered["token"], registered["mode"]
            while True:
                directive = await self._poll({"doing": "idle", "reset_fence": self._served_fence})
                if directive["do"] == "exit":
                    return
                if directive["do"] == "hold" and not await self._serve(directive["assignment"]):
                    return
        finally:
            self._poll_line.close()
            self._call_line.close()

    async def _serve(self, held: dict[str, Any]) -> bool:
        """Serves one claim; returns whether the agent goes on afterwards."""
        status, _ = await self._poll_line.call("/v1/worker/ack", self._token, {"fence": held["fence"], "endpoint": ENDPOINT})
        if status != 200:
            return status == 409  # the claim does not belong to this worker any more, so poll again
        if self._mode == "job":
            # A real agent polls while its command runs, so this one does too, and reports the result beside that poll.
            polling = asyncio.ensure_future(self._until_ended(held))
            await asyncio.sleep(self._job_seconds)
            await self._until_accepted(self._call_line, "result", {"fence": held["fence"], "exit_code": 0})
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await polling
            return False
        park = await self._until_ended(held)
        self._served_fence = held["fence"]
        return park

    async def _until_ended(self, held: dict[str, Any]) -> bool:
        """Polls until the claim has ended; returns whether the worker is parked."""
        report = {name: held[name] for name in ("claim", "fence", "tenant", "credential")}
        while True:
            directive = await self._poll({"doing": "running", **report})
            if directive["do"] == "end" and directive["fence"] == held["fence"]:
                return bool(directive.get("park"))

    async def _poll(self, report: dict[str, Any]) -> Any:
        shown = {**report, "endpoint": ENDPOINT if self._mode == "session" else None, "wait": POLL_SECONDS}
        return await self._until_accepted(self._poll_line, "poll", shown)

    async def _until_accepted(self, line: Line, verb: str, body: dict[str, Any]) -> Any:
        pause = FIRST_PAUSE
        while True:
            with contextlib.suppress(OSError):
                status, answer = await line.call(f"/v1/worker/{verb}", self._token or self._bootstrap, body)
                if status == 200:
                    return answer
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, LONGEST_PAUSE)


async def main(port: int, job_seconds: float) -> None:
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    living: dict[str, asyncio.Task[None]] = {}

    async def live(worker: str, uid: str, token: str) -> None:
        try:
            await Agent(port, job_seconds, worker, uid, token).run()
        finally:
            del living[uid]
            os.write(1, json.dumps({"ended": uid}).encode() + b"\n")

    while line := await orders.readline():
        order = json.loads(line)
        if "start" in order:
            worker, uid, token = order["start"]
            living[uid] = asyncio.create_task(live(worker, uid, token))
        elif order["stop"] in living:
            living[order["stop"]].cancel()
    for task in list(living.values()):
        task.cancel()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), float(sys.argv[2])))
