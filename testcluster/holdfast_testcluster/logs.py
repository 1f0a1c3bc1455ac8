"""Serves the logs of containers to the API server, so that `kubectl logs` and `pods/log` work."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from holdfast_testcluster.container import Container

LOOK_EVERY = 0.05  # seconds, while a client follows a log
CHUNK = 1 << 16

Find = Callable[[str, str, str], Container | None]  # finds a container by namespace, pod and container


class LogServer:
    """Serves HTTPS. The API server does not check its certificate, because it has no certificate authority for kubelets."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self.port = 0

    async def start(self, certificate: Path, key: Path) -> None:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        found = self._find(*(request.match_info[each] for each in ("namespace", "pod", "container")))
        path = found.previous_log if found and request.query.get("previous") == "true" else found.log if found else None
        if found is None or path is None or not path.exists():
            return web.Response(status=404, text="no log: this container has not run here\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        left = int(request.query.get("limitBytes", 1 << 62))
        with path.open("rb") as file:
            file.seek(_start_of_tail(path, request.query.get("tailLines")))
            while left > 0:
                # before the read, so that everything that was written before the end is read
                ended = found.ended or found.log != path
                if chunk := file.read(min(CHUNK, left)):
                    left -= len(chunk)
                    await response.write(chunk)
                elif ended or request.query.get("follow") != "true":
                    break
                else:
                    await asyncio.sleep(LOOK_EVERY)
        await response.write_eof()
        return response


def _start_of_tail(path: Path, lines: str | None) -> int:
    if lines is None:
        return 0
    content = path.read_bytes()
    kept = content.splitlines(keepends=True)[-int(lines) :] if int(lines) else []
    return len(content) - sum(map(len, kept))
