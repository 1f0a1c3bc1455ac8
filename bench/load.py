"""A cheap client: keep-alive sockets that send one prepared request over and over, in a process of its own.

`TOKEN=… python -m bench.load PORT POOL CLIENTS COUNT SECONDS` prints
{"seconds", "latencies" (in seconds, in order of answer), "errors"}.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import cast

import uvloop

from .spread import Spread


class Client(asyncio.Protocol):
    """One request at a time. It reads no more of an answer than it must."""

    def __init__(self, request: bytes, more: Callable[[], bool], answered: Callable[[float, bool], None]) -> None:
        self._request = request
        self._more = more
        self._answered = answered
        self._sent = 0.0
        self._buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        if not self._more():
            self._transport.close()
            self.done.set_result(None)
            return
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._buffer = b""
        # Granted, not put in the queue: only that is the path that is measured.
        self._answered(time.perf_counter() - self._sent, head.startswith(b"HTTP/1.1 201") and b'"state":"active"' in body)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the replica closed the connection"))


async def load(port: int, token: str, pool: str, clients: int, count: int, seconds: float) -> dict[str, object]:
    body = json.dumps({"pool": pool, "wait": "0s"}).encode()
    lines = [
        "POST /v1/claims HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    left, end, errors = count, time.perf_counter() + seconds, 0
    latencies: list[float] = []

    def more() -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and time.perf_counter() < end

    def answered(latency: float, granted: bool) -> None:
        nonlocal errors
        latencies.append(latency)
        errors += not granted

    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    made = [await loop.create_connection(lambda: Client(request, more, answered), "127.0.0.1", port) for _ in range(clients)]
    await asyncio.gather(*(client.done for _, client in made))
    return {"seconds": time.perf_counter() - started, "latencies": latencies, "errors": errors}


def run(port: int, token: str, pool: str, *, clients: int, count: int, seconds: float) -> Spread:
    """Load a replica from another process; what its requests took."""
    words = [port, pool, clients, count, seconds]
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", *map(str, words)],
        env={**os.environ, "TOKEN": token},
        capture_output=True,
        text=True,
        timeout=seconds + 30,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the load failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    assert not found["errors"], f"{found['errors']} of {len(found['latencies'])} claims were not granted at once"
    return Spread(found["seconds"], found["latencies"])


if __name__ == "__main__":
    port, pool, clients, count, seconds = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer = runner.run(load(int(port), os.environ["TOKEN"], pool, int(clients), int(count), float(seconds)))
    os.set_blocking(1, True)  # the loop may have left it otherwise, and then a long answer is cut
    print(json.dumps(answer))
