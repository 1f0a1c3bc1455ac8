"""Strangers open more connections than the process has descriptors. Duties must still be able to open files (P6)."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from strangers import connect, crowd, read_answer

from waiting import eventually

# A server with the real protocol and 120 descriptors. It opens files ten times per second, as a duty does, and prints every
# failure. When it receives a line, it takes all descriptors that are left for two seconds, as a defect would.
SERVER = """
import asyncio, resource, structlog, sys, uvicorn, uvloop
from starlette.applications import Starlette
from holdfast.api import descriptors, door
from holdfast.api.door import Door
from holdfast.api.server import BoundedHttp
from holdfast.metrics import Metrics

async def main():
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    door.SHARE = 1  # all connections come from the same address
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 120))
    app, metrics = Starlette(), Metrics()
    app.state.door = Door(metrics, descriptors.connections_within(descriptors.raise_limit()))
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, http=BoundedHttp, ws="none"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    asyncio.get_running_loop().add_reader(0, lambda: sys.stdin.readline() and use_up())
    while not serving.done():
        try:
            [open("/dev/null").close() for _ in range(3)]
        except OSError as error:
            print("duty:", error, flush=True)
        await asyncio.sleep(0.1)

def use_up():
    files = []
    try:
        while True:
            files.append(open("/dev/null"))
    except OSError:
        print("used up", flush=True)
    asyncio.get_running_loop().call_later(2, lambda: [each.close() for each in files] and print("given back", flush=True))

uvloop.run(main())
"""


def test_a_flood_of_connections_leaves_descriptors_for_duties() -> None:
    source = Path(__file__).parents[2] / "src"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(source)},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        port = int(process.stdout.readline())
        with crowd(port, 300):
            eventually(lambda: answered(port), 5, "a new client is served")
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "used up\n", "until now every file could be opened"
            said = process.stdout.readline()
            while said.startswith("duty:"):
                said = process.stdout.readline()
            assert said == "given back\n"
            with ExitStack() as stack:
                [stack.enter_context(connect(port)) for _ in range(10)]
                eventually(lambda: answered(port), 5, "accepting goes on")
    finally:
        process.kill()
        process.wait()


def answered(port: int) -> bool:
    with connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        return read_answer(connection)[0] == 404
