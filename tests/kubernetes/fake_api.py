"""A small, strict API server for tests of the informer: paged lists, watches from a version, compaction on demand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api

PATH = "/api/v1/namespaces/n/pods"
SELECTOR = "holdfast.dev/install=one"
LIST = {"limit", "continue", "labelSelector"}
WATCH = {"watch", "allowWatchBookmarks", "resourceVersion", "timeoutSeconds", "labelSelector"}
Object = dict[str, Any]


class FakeApi:
    def __init__(self, folder: Path) -> None:
        self.version = 100
        self.objects: dict[str, Object] = {}
        self.lists: list[dict[str, str]] = []  # queries of all requests, in order
        self.watches: list[dict[str, str]] = []
        self.refused = 0  # requests with a token that is not accepted
        self.token = "first"  # the token that is accepted
        self.expires_in_stream = False  # send 410 as an ERROR event of the watch, not as a status
        self.lose_pages = 0  # for this many requests, the token of a continued list has expired
        self.hold_lists = asyncio.Event()
        self.hold_lists.set()
        self._token_file = folder / "token"
        self._kubeconfig = folder / "kubeconfig"
        self._oldest = 0
        self._past: list[Object] = []
        self._streams: list[asyncio.Queue[Object | None]] = []

    # For tests

    def put(self, name: str, **metadata: Any) -> Object:
        """Creates or changes a pod."""
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = self._pod(name, **metadata)
        self._tell({"type": kind, "object": self.objects[name]})
        return self.objects[name]

    def delete(self, name: str) -> None:
        gone = self.objects.pop(name)
        self.version += 1
        self._tell({"type": "DELETED", "object": gone | {"metadata": gone["metadata"] | {"resourceVersion": str(self.version)}}})

    def elsewhere(self, changes: int) -> None:
        """Raises the version as if other objects had changed. No watch gets an event."""
        self.version += changes

    def bookmark(self) -> None:
        mark = {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}, "spec": {"containers": None}, "status": {}}
        self._send({"type": "BOOKMARK", "object": mark})

    def error(self, code: int, reason: str) -> None:
        self._send({"type": "ERROR", "object": status(code, reason)})

    def compact(self) -> None:
        """Forgets older versions: watches and continued lists from them get 410."""
        self.version += 1
        self._oldest, self._past = self.version, []

    def cut(self) -> None:
        """Ends every watch, as a restart or a timeout does."""
        for stream in self._streams:
            stream.put_nowait(None)

    @property
    def watching(self) -> int:
        return len(self._streams)

    def rotate(self, token: str) -> None:
        """Replaces the accepted token, and writes the new token into the file."""
        self.token = token
        self._token_file.write_text(token + "\n")

    # Serving

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Api]:
        """Starts the server. Yields a client that reads its token from a file, as a pod does."""
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        api = Api(find_access(self._config(runner.addresses[0][1])))
        try:
            yield api
        finally:
            await api.close()
            self.cut()
            await runner.cleanup()

    def _config(self, port: int) -> Path:
        self.rotate(self.token)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "us", "user": {"tokenFile": str(self._token_file)}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "us"}}],
            "current-context": "fake",
        }
        self._kubeconfig.write_text(yaml.safe_dump(config))
        return self._kubeconfig

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = dict(request.query)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.refused += 1
            return web.json_response(status(401, "Unauthorized"), status=401)
        if asked.get("labelSelector") != SELECTOR or asked.keys() - (WATCH if "watch" in asked else LIST):
            return web.json_response(status(400, "BadRequest"), status=400)
        return await (self._watch(request, asked) if asked.get("watch") == "1" else self._list(asked))

    async def _list(self, asked: dict[str, str]) -> web.Response:
        self.lists.append(asked)
        await self.hold_lists.wait()
        at, start = self.version, 0
        if "continue" in asked:
            at, start = map(int, asked["continue"].split("-"))
            if self.lose_pages > 0:
                self.lose_pages -= 1
                self.compact()
            if at < self._oldest:
                return web.json_response(status(410, "Expired"), status=410)
        names, limit = sorted(self.objects), int(asked["limit"])
        page = [self.objects[name] for name in names[start : start + limit]]
        more = {"continue": f"{at}-{start + limit}"} if start + limit < len(names) else {}
        return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": str(at), **more}, "items": page})

    async def _watch(self, request: web.Request, asked: dict[str, str]) -> web.StreamResponse:
        self.watches.append(asked)
        assert asked["allowWatchBookmarks"] == "true"
        since = int(asked["resourceVersion"])
        expired = since < self._oldest
        if expired and not self.expires_in_stream:
            return web.json_response(status(410, "Expired"), status=410)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        if expired:
            await answer.write(_line({"type": "ERROR", "object": status(410, "Expired")}))
            return answer
        stream: asyncio.Queue[Object | None] = asyncio.Queue()
        for past in self._past:
            if int(past["object"]["metadata"]["resourceVersion"]) > since:
                stream.put_nowait(past)
        self._streams.append(stream)
        try:
            while (event := await stream.get()) is not None:
                await answer.write(_line(event))
        finally:
            self._streams.remove(stream)
        return answer

    def _pod(self, name: str, **metadata: Any) -> Object:
        self.version += 1
        labels = {"holdfast.dev/install": "one", "holdfast.dev/worker": name}
        meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.version), "labels": labels}
        return {"kind": "Pod", "metadata": meta | metadata, "spec": {"containers": [{"name": "work"}]}, "status": {}}

    def _tell(self, event: Object) -> None:
        self._past.append(event)
        self._send(event)

    def _send(self, event: Object) -> None:
        for stream in self._streams:
            stream.put_nowait(event)


def status(code: int, reason: str) -> Object:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}


def _line(event: Object) -> bytes:
    return json.dumps(event).encode() + b"\n"
