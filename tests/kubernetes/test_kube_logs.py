"""Logs are read in pieces: what was read is not requested again, new output is, and the cache is bounded."""

from typing import Any

import msgspec
import pytest

from holdfast.kubernetes import logs
from holdfast.kubernetes.api import ApiRefused, Status
from holdfast.kubernetes.logs import Logs
from holdfast.kubernetes.shapes import PodObject


class Server:
    """The log of each pod, and how often it was requested."""

    def __init__(self) -> None:
        self.logs: dict[str, bytes] = {}
        self.asked = 0

    async def get(self, path: str, params: dict[str, str] | None = None, timeout: float = 10.0) -> bytes:
        self.asked += 1
        assert params is not None
        assert params["container"] == "work"
        name = path.split("/")[-2]
        if name not in self.logs:
            raise ApiRefused(Status(400, "BadRequest", "container is waiting to start"))
        return self.logs[name][: int(params["limitBytes"])]


def pod(name: str, *, ended: bool = False) -> PodObject:
    done = {"containerStatuses": [{"name": "work", "state": {"terminated": {"exitCode": 0}}}], "phase": "Succeeded"}
    shown = {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "work"}]},
        "status": done if ended else {"phase": "Running"},
    }
    return msgspec.convert(shown, PodObject)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def log(server: Server) -> Logs:
    reader: Any = server
    return Logs(reader, "/pods")


async def read_all(log: Logs, of: PodObject, piece: int) -> bytes:
    whole = b""
    while data := (await log.read(of, len(whole), piece)).data:
        whole += data
    return whole


async def test_a_long_log_is_read_once_however_many_pieces_it_has(server: Server, log: Logs) -> None:
    server.logs["w"] = bytes(range(256)) * 4096 * 3
    assert await read_all(log, pod("w", ended=True), 64 * 1024) == server.logs["w"]
    assert await read_all(log, pod("w", ended=True), 1000) == server.logs["w"], "another reader"
    assert server.asked == 1


async def test_what_a_container_prints_last_is_read(server: Server, log: Logs) -> None:
    assert (await log.read(pod("w"), 0, 10)).size == 0, "not started yet"
    server.logs["w"] = b"one"
    assert (await log.read(pod("w"), 0, 10)).data == b"one"
    server.logs["w"] = b"one, two" + b"." * 2 * logs.RATE
    assert (await log.read(pod("w"), 3, 5)).data == b", two"
    before = server.asked
    end = len(server.logs["w"])
    server.logs["w"] += b"last"
    assert (await log.read(pod("w"), end, 9)).data == b"", "so long a log is not read again at once"
    assert server.asked == before
    assert (await log.read(pod("w", ended=True), end, 9)).data == b"last", "but when its container has ended"


async def test_no_more_is_read_than_may_be(server: Server, log: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    server.logs["w"] = b"x" * (logs.LOG_LIMIT + 1)
    last = await log.read(pod("w"), logs.LOG_LIMIT - 2, 10)
    assert (last.data, last.size, last.truncated) == (b"xx", logs.LOG_LIMIT, True)
    monkeypatch.setattr(logs, "KEPT", 10)
    for number in range(5):
        server.logs[f"v{number}"] = b"12345"
        await log.read(pod(f"v{number}"), 0, 9)
    assert sum(len(each.data) for each in log._kept.values()) <= 10
