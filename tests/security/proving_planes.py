"""Control planes for attacks on agents: one that proves itself, an impostor that cannot, and a relay that changes answers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from agent_control_plane import Plane
from aiohttp import ClientSession, web

from holdfast.proof import NONCE, PROOF, Signer

SIGNER = Signer(b"the installation's key")


class ProvingPlane(Plane):
    """A control plane that signs its answers as the real one does."""

    signer = SIGNER

    def middlewares(self) -> list[Any]:
        @web.middleware
        async def prove(request: web.Request, handler: Callable[[web.Request], Awaitable[web.Response]]) -> web.Response:
            response = await handler(request)
            body = response.body if isinstance(response.body, bytes) else b""
            token = request.headers.get("Authorization", "")
            proof = self.signer.sign(request.headers.get(NONCE, ""), request.path, token, response.status, body)
            if proof is not None:
                response.headers[PROOF] = proof
            return response

        return [prove]


class Relay:
    """A process between agent and server. It forwards everything, and changes the answers with `change`. Without a target it is
    an impostor, which answers every request with `change(path, b"")`."""

    def __init__(self, target: str | None, change: Callable[[str, bytes], bytes], port: int = 0) -> None:
        self._target, self._change = target, change
        self.requests: list[tuple[str, str]] = []  # path and Authorization header
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(port), self._loop).result(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def tokens(self) -> list[str]:
        return [token for _, token in list(self.requests) if token]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self, port: int) -> int:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        return int(self._runner.addresses[0][1])

    async def _forward(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, request.headers.get("Authorization", "")))
        if self._target is None:
            return web.Response(body=self._change(request.path, b""), headers={PROOF: "forged"})
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        async with (
            ClientSession() as session,
            session.post(self._target + request.path, data=await request.read(), headers=headers) as answer,
        ):
            body = self._change(request.path, await answer.read())
            return web.Response(body=body, status=answer.status, headers={PROOF: answer.headers.get(PROOF, "")})
