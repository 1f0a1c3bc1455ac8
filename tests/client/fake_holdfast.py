"""A small strict server that follows docs/api.md: several replicas that share one state, with faults on demand.

It runs in its own thread, so that synchronous callers and other processes can use it as well.
"""

import asyncio
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web
from fake_claims import FakeClaims, problem

from holdfast.unix_socket import to_url

TOKEN = "a-token-of-the-test"
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeHoldfast(FakeClaims):
    """`replicas` are addresses that share one state. `faults[(method, path ending)]` break the next requests."""

    def __init__(self, replicas: int = 1) -> None:
        super().__init__()
        self.token = TOKEN
        self.role: dict[str, Any] | None = {"name": "root", "role": "admin", "tenant": None, "install": "i-fake", "version": "0"}
        self.pools: dict[str, dict[str, Any]] = {}
        self.tenants: dict[str, dict[str, Any]] = {}
        self.checks: list[dict[str, Any]] = [{"name": "database", "promise": "P6", "ok": True, "detail": "fine", "advice": ""}]
        self.replicas: list[dict[str, Any]] = [{"id": "r-1", "state": "live", "url": "http://127.0.0.1:7070"}]
        self.duties: list[dict[str, Any]] = [
            {"duty": "match", "holder": "r-1", "number": 4, "age": 0.5, "seconds": 0.01, "actions": 3}
        ]
        self.brake: dict[str, Any] = {"tripped": False, "tripped_at": None, "reason": None}
        self.log: list[tuple[int, str, str]] = []  # (replica, method, path with query)
        self.faults: dict[tuple[str, str], deque[Fault]] = {}
        self._loop = asyncio.new_event_loop()
        self._runners: list[web.AppRunner] = []
        self.urls: list[str] = []
        self.sockets: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="hf-"))  # private, as the folder of the real sockets
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self._start(replicas))

    @property
    def url(self) -> str:
        return self.urls[0]

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        async def stop() -> None:
            for runner in self._runners:
                await runner.cleanup()

        self.do(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._folder)

    def fail_next(self, method: str, ending: str, *faults: Fault) -> None:
        self.faults.setdefault((method, ending), deque()).extend(faults)

    def asked(self, method: str, ending: str) -> list[str]:
        return [path for _, was, path in list(self.log) if was == method and path.split("?")[0].endswith(ending)]

    def change(self, claim: str, **fields: Any) -> None:
        async def apply() -> None:
            async with self._changed:
                self.claims[claim].update(fields)
                self._changed.notify_all()

        self.do(apply())

    def write(self, claim: str, data: bytes) -> None:
        async def apply() -> None:
            async with self._changed:
                self.outputs[claim] += data
                self._changed.notify_all()

        self.do(apply())

    def until(self, condition: Callable[["FakeHoldfast"], Any]) -> Any:
        """Waits until a request makes the condition true."""

        async def wait() -> Any:
            async with self._changed:
                return await asyncio.wait_for(self._changed.wait_for(lambda: condition(self)), 20)

        return self.do(wait())

    def happen(self, kind: str, **fields: Any) -> None:
        async def apply() -> None:
            async with self._changed:
                self.events.append({"id": len(self.events) + 1, "at": "2026-01-01T00:00:00+00:00", "kind": kind, **fields})
                self._changed.notify_all()

        self.do(apply())

    # The server

    async def _start(self, replicas: int) -> None:
        for number in range(replicas):
            app = web.Application(middlewares=[self._guard(number)], client_max_size=64 * 1024)
            self._routes(app)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._runners.append(runner)
            self.urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            socket = self._folder / f"{number}.sock"
            await web.UnixSite(runner, socket).start()
            self.sockets.append(to_url(socket))

    def kill(self, replica: int) -> None:
        """Closes the replica's port and breaks its open connections."""

        async def stop() -> None:
            runner = self._runners[replica]
            for site in list(runner.sites):
                await site.stop()
            for connection in list(runner.server.connections if runner.server else ()):
                if connection.transport:
                    connection.transport.abort()

        self.do(stop())

    def _guard(self, number: int) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
            async with self._changed:
                self.log.append((number, request.method, request.path_qs))
                self._changed.notify_all()
            for (method, ending), faults in self.faults.items():
                if method == request.method and request.path.endswith(ending) and faults:
                    answer = await faults.popleft()(request)
                    if answer is not None:
                        return answer
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                return problem(401, "unauthorized", "this token is not known")
            try:
                answered: web.StreamResponse = await handler(request)
            except web.HTTPNotFound:
                return problem(404, "not-found", f"no route {request.path}")
            return answered

        return guard

    def _routes(self, app: web.Application) -> None:
        router = app.router
        self.add_claim_routes(router)
        router.add_get("/v1/claims", self._listing(lambda: reversed(self.claims.values())))
        for noun, rows in (("pools", self.pools), ("tenants", self.tenants)):
            router.add_get(f"/v1/{noun}", self._listing(rows.values))
            router.add_get(f"/v1/{noun}/{{name}}", self._getting(rows))
            router.add_put(f"/v1/{noun}/{{name}}", self._putting(rows))
        router.add_delete("/v1/pools/{name}", self._delete_pool)
        router.add_post("/v1/pools/{name}/freeze", self._freeze)
        router.add_get("/v1/workers", self._listing(tuple))
        router.add_get("/v1/tokens", self._listing(tuple))
        router.add_get("/v1/duties", self._listing(lambda: self.duties))
        router.add_get("/v1/brake", self._brake)
        router.add_get("/v1/replicas", self._listing(lambda: self.replicas))
        router.add_get("/v1/doctor", self._doctor)
        router.add_get("/v1/explain/{kind}/{id}", self._explain)
        router.add_get("/v1/me", self._whoami)

    def _listing(self, rows: Callable[[], Iterable[dict[str, Any]]]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            unknown = set(request.query) - {"limit", "cursor", "pool", "tenant", "state"}
            if unknown:
                errors = [{"field": name, "reason": "unknown parameter"} for name in sorted(unknown)]
                return problem(422, "invalid", "unknown parameter", errors)
            state = request.query.get("state")
            found = [row for row in rows() if state is None or row["state"] == state]
            start, limit = int(request.query.get("cursor", 0)), int(request.query.get("limit", 100))
            more = start + limit < len(found)
            return web.json_response({"items": found[start : start + limit], "next": str(start + limit) if more else None})

        return handler

    def _getting(self, rows: dict[str, dict[str, Any]]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            name = request.match_info["name"]
            if name not in rows:
                return problem(404, "not-found", f"no such thing: {name!r}")
            return web.json_response(rows[name])

        return handler

    def _putting(self, rows: dict[str, dict[str, Any]]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            name, spec = request.match_info["name"], await request.json()
            status = {"warm": spec.get("warm", 0), "held": 1, "waiting": 2, "oldest_wait": 61.0}
            rows[name] = {"name": name, "id": f"p-{name}", "state": "live", "spec": spec, "status": status}
            return web.json_response(rows[name])

        return handler

    async def _delete_pool(self, request: web.Request) -> web.Response:
        self.pools.pop(request.match_info["name"])
        return web.json_response({}, status=202)

    async def _freeze(self, request: web.Request) -> web.Response:
        pool = self.pools[request.match_info["name"]]
        pool["frozen"] = (await request.json())["reason"]
        return web.json_response(pool)

    async def _doctor(self, _: web.Request) -> web.Response:
        return web.json_response({"checks": self.checks, "ok": all(check["ok"] for check in self.checks)})

    async def _brake(self, _: web.Request) -> web.Response:
        return web.json_response(self.brake)

    async def _whoami(self, _: web.Request) -> web.Response:
        return problem(404, "not-found", "no such route") if self.role is None else web.json_response(self.role)

    async def _explain(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["id"]
        return web.json_response({"kind": kind, "id": name, "sentences": [f"{kind} {name} is well."], "facts": {}})


# Faults


async def lose_answer(request: web.Request) -> web.StreamResponse | None:
    """Cuts the connection before the request has any effect."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response(status=500)


def unavailable(retry_after: int) -> Fault:
    async def fault(_: web.Request) -> web.StreamResponse | None:
        return problem(503, "store-away", "the database is away", **{"Retry-After": str(retry_after)})

    return fault
