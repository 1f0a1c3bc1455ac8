"""A proxy to the API server that a test can break. It forwards every call, unless the test chooses another answer."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import yaml
from aiohttp import web

from holdfast_testcluster.access import Access

Body = dict[str, Any]


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: dict[str, str]
    body: Body
    port: int  # of the client; it identifies the connection
    at: float = field(default_factory=time.monotonic)

    @property
    def lists_pods(self) -> bool:
        return self.method == "GET" and self.path.endswith("/pods") and "watch" not in self.query

    @property
    def watches_pods(self) -> bool:
        return self.method == "GET" and self.path.endswith("/pods") and "watch" in self.query

    def patches(self, label: str) -> bool:
        """Returns whether the call patches a pod and sets this label."""
        labels = self.body.get("metadata", {}).get("labels", {})
        return self.method == "PATCH" and "/pods/" in self.path and bool(labels.get(label))


# Chooses the answer to a call. A status is the answer, and the call is not forwarded. A function changes the true answer. "lost"
# forwards the call and then drops the connection. None forwards the call unchanged.
Fault = Callable[[Call], int | Callable[[Body], Body] | Literal["lost"] | None]


class FlakyApi:
    """`with FlakyApi(access, kubeconfig, folder) as flaky`. Clients that use `flaky.kubeconfig` go through this proxy."""

    def __init__(self, access: Access, kubeconfig: Path, folder: Path) -> None:
        self._access, self._original = access, kubeconfig
        self.kubeconfig = folder / "flaky.kubeconfig"
        self.calls: list[Call] = []
        self.fault: Fault = lambda call: None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "FlakyApi":
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        config = yaml.safe_load(self._original.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        self.kubeconfig.write_text(yaml.safe_dump(config))
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> int:
        self._client = aiohttp.ClientSession(auto_decompress=True, timeout=aiohttp.ClientTimeout(total=None))
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        assert request.transport is not None
        port = int(request.transport.get_extra_info("peername")[1])
        call = Call(request.method, request.path, dict(request.query), json.loads(data) if data else {}, port)
        self.calls.append(call)
        instead = self.fault(call)
        if isinstance(instead, int):
            reason = {403: "Forbidden", 410: "Expired", 503: "ServiceUnavailable"}[instead]
            return web.json_response({"kind": "Status", "code": instead, "reason": reason, "message": "a test"}, status=instead)
        headers = {key: request.headers[key] for key in ("Authorization", "Content-Type", "Accept") if key in request.headers}
        url = self._access.url + request.path_qs
        try:
            async with self._client.request(
                request.method, url, data=data or None, headers=headers, ssl=self._access._tls
            ) as true:
                if instead == "lost":
                    await true.read()
                    request.transport.abort()
                    return web.Response()
                if instead is not None:
                    return web.json_response(instead(await true.json()), status=true.status)
                answer = web.StreamResponse(status=true.status, headers={"Content-Type": true.headers.get("Content-Type", "")})
                await answer.prepare(request)
                async for chunk, _ in true.content.iter_chunks():
                    await answer.write(chunk)
                return answer
        except aiohttp.ClientError:
            return web.Response(status=502)
