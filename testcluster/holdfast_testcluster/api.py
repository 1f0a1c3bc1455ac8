"""The kubelet's own small client of the API server, based on aiohttp."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import yaml

JSON = "application/json"
MERGE = "application/merge-patch+json"
# as a kubelet uses it, because it merges conditions by type and does not replace them
STRATEGIC = "application/strategic-merge-patch+json"
AGAIN_AFTER = 0.5  # seconds
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)
EVENT_AT_MOST = 4 << 20  # bytes, because an object has at most about 1.5 MB

Object = dict[str, Any]
Body = Mapping[str, Any]


class Answer(NamedTuple):
    status: int
    body: Any


class Expired(Exception):
    """The resourceVersion is too old. The caller must list again."""


class Api:
    """`async with Api(kubeconfig) as api`. Methods raise the errors of aiohttp if the API server cannot be reached."""

    def __init__(self, kubeconfig: Path, connections: int = 64) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url: str = cluster["server"]
        self._headers = {"Authorization": f"Bearer {user['token']}", "Accept": JSON}
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._connections = connections

    async def __aenter__(self) -> "Api":
        connector = aiohttp.TCPConnector(limit=self._connections, ssl=self._tls)
        self._session = aiohttp.ClientSession(self.url, connector=connector, headers=self._headers, read_bufsize=EVENT_AT_MOST)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def request(self, method: str, path: str, body: Body | None = None, kind: str = JSON) -> Answer:
        """Returns the answer with any status."""
        data = None if body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=15)
        async with self._session.request(method, path, data=data, headers={"Content-Type": kind}, timeout=timeout) as response:
            raw = await response.read()
            is_json = response.content_type == JSON
            return Answer(response.status, msgspec.json.decode(raw) if is_json else raw.decode(errors="replace"))

    async def insist(self, method: str, path: str, body: Body | None = None, kind: str = JSON) -> Answer:
        """Repeats a request until the API server is reached and is neither overloaded nor broken."""
        while True:
            try:
                answer = await self.request(method, path, body, kind)
                if answer.status != 429 and answer.status < 500:
                    return answer
            except UNREACHABLE:
                pass
            await asyncio.sleep(AGAIN_AFTER)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
        """Yields events until the server closes the watch. Raises `Expired` for both forms of 410."""
        params = {**query, "watch": "1", "allowWatchBookmarks": "true"}
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=120)  # bookmarks arrive every minute
        async with self._session.get(path, params=params, timeout=timeout) as response:
            if response.status == 410:
                raise Expired
            response.raise_for_status()
            while line := await response.content.readline():
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    raise Expired(event["object"].get("message"))
                yield event
