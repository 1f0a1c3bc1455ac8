"""A small, strict control plane for one worker. It refuses what the real one refuses, and adds unknown fields to its answers."""

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from waiting import sooner

NOVELTY = {"novelty": {"from": "a newer server"}}


class Plane:
    """Runs in a thread. Tests set what it answers and read what it received."""

    def __init__(self, **settings: Any) -> None:
        self.settings = {"mode": "job", "expires_in": 3600, "poll_seconds": 20, "grace": 3600, **settings}
        self.bootstrap = "bootstrap-1"
        self.tokens: set[str] = set()
        self.assignment: dict[str, Any] | None = None
        self.accept = True
        self.acked: int | None = None
        self.ended: dict[int, dict[str, Any]] = {}
        self.exit = False
        self.polls: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.hold_acks = False
        self.input, self.input_ends = b"", False  # what the caller has sent
        self.now_polling = 0
        self._turned = 0
        self._runner: web.AppRunner | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.port = 0
        self.up()

    # For tests

    def up(self, port: int = 0) -> str:
        self._do(self._start(port))
        return self.url

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def down(self) -> None:
        runner = self._runner
        if runner is not None:
            self._do(runner.cleanup())
        self._runner = None

    def close(self) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def assign(self, fence: int = 7, claim: str = "c-1", tenant: str = "acme", **more: Any) -> None:
        self.assignment = {
            "claim": claim,
            "fence": fence,
            "tenant": tenant,
            "command": [],
            "payload": None,
            "env": {},
            "secrets": {},
            "credential": None,
            "protected": True,
            "max_seconds": 3600,
            **more,
        }

    def end(self, fence: int = 7, park: bool = False, reason: str = "released") -> None:
        self.ended[fence] = {"do": "end", "fence": fence, "reason": reason, "park": park}

    def received(self, call: str) -> list[dict[str, Any]]:
        return [body for where, body in list(self.calls) if where == call]

    def doing(self) -> str:
        return str(self.polls[-1]["doing"]) if self.polls else ""

    # Routes for agents

    def _do(self, what: Awaitable[None]) -> None:
        async def run() -> None:
            await what

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def middlewares(self) -> list[Any]:
        """Returns what a plane does with every request. Tests of proofs add theirs here."""
        return []

    async def _start(self, port: int) -> None:
        app = web.Application(middlewares=self.middlewares())
        app.router.add_post("/v1/worker/register", self._register)
        handlers = {"poll": self._poll, "progress": self._progress, "ack": self._ack}
        handlers |= {"input": self._input, "result": self._result, "refuse": self._final_report, "failed": self._final_report}
        for name, call in handlers.items():
            app.router.add_post(f"/v1/worker/{name}", self._guarded(name, call))
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _register(self, request: web.Request) -> web.Response:
        if "Authorization" not in request.headers:
            return problem(401, "unauthenticated")
        body = await request.json()
        self.calls.append(("register", body))
        if request.headers.get("Authorization") != f"Bearer {self.bootstrap}":
            return problem(401, "unauthorized")
        if body["worker"] != "w-1" or body["uid"] != "uid-1" or body["protocol"] != 1:
            return problem(409, "unknown-worker")
        token = f"signed-{len(self.calls)}"
        self.tokens.add(token)
        return web.json_response({**self.settings, **NOVELTY, "token": token})

    def _guarded(
        self, name: str, call: Callable[[dict[str, Any]], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme != "Bearer" or token not in self.tokens:
                return problem(401, "unauthorized")
            body = json.loads(await request.read())
            if name != "poll":
                self.calls.append((name, body))
            return await call(body)

        return handle

    async def _poll(self, poll: dict[str, Any]) -> web.Response:
        assert set(poll) >= {"doing", "claim", "fence", "tenant", "reset_fence", "endpoint", "wait"}
        assert (poll["claim"] is None) == (poll["fence"] is None) == (poll["tenant"] is None)
        self.polls.append(poll)
        self.now_polling += 1
        try:
            order = await sooner(lambda: self._wants(poll), within=poll["wait"])
            return web.json_response({**(order or {"do": "nothing"}), **NOVELTY})
        finally:
            self.now_polling -= 1

    def _wants(self, poll: dict[str, Any]) -> dict[str, Any] | None:
        if poll["claim"] is not None:
            return self.ended.get(poll["fence"])
        if self.exit:
            return {"do": "exit", "reason": "condemned"}
        given = self.assignment
        if given and poll["doing"] == "idle" and self.acked != given["fence"]:
            return {"do": "hold", "assignment": {**given, **NOVELTY}}
        return None

    def _ours(self, fence: object) -> bool:
        return bool(self.assignment) and self.assignment["fence"] == fence and fence not in self.ended  # type: ignore[index]

    async def _progress(self, body: dict[str, Any]) -> web.Response:
        return web.Response(status=204) if self._ours(body["fence"]) else problem(409, "stale")

    async def _ack(self, body: dict[str, Any]) -> web.Response:
        await sooner(lambda: not self.hold_acks)
        if not self.accept or not self._ours(body["fence"]):
            return problem(409, "stale")
        self.acked = body["fence"]
        return web.json_response(NOVELTY)

    async def _result(self, body: dict[str, Any]) -> web.Response:
        assert isinstance(body["exit_code"], int)
        ours = self._ours(body["fence"]) and self.acked == body["fence"]
        return web.json_response(NOVELTY) if ours else problem(409, "stale")

    async def _input(self, body: dict[str, Any]) -> web.Response:
        if not self._ours(body["fence"]) or self.acked != body["fence"]:
            return problem(409, "stale")
        taken = body["taken"]
        await sooner(lambda: len(self.input) > taken or self.input_ends or body["closed"], within=body["wait"])
        data = self.input[taken : taken + 100_000]
        end = self.input_ends and taken + len(data) == len(self.input)
        return web.json_response({"data": base64.b64encode(data).decode(), "end": end, **NOVELTY})

    async def _final_report(self, body: dict[str, Any]) -> web.Response:
        assert body["reason"]
        return web.Response(status=204)


def problem(status: int, code: str) -> web.Response:
    body = {"type": f"about:{code}", "title": code, "status": status, "detail": "…", "code": code, **NOVELTY}
    return web.json_response(body, status=status, content_type="application/problem+json")
