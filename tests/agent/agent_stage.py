"""One real agent, a process of its own, and how a test waits for what it does."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKEN = "bootstrap-1"


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)
    return value


class Running:
    """One agent, its folder and what it said."""

    def __init__(self, folder: Path, servers: list[str], **env: str) -> None:
        self.folder = folder
        self.token_file, self.servers_file = folder / "token", folder / "servers"
        self.token_file.write_text(TOKEN + "\n")
        self.servers_file.write_text("\n".join(servers) + "\n")
        self.work, self.outputs, self.log_file = folder / "worker", folder / "outputs", folder / "log"
        settings = {
            "HOLDFAST_WORKER": "w-1",
            "HOLDFAST_POD_UID": "uid-1",
            "HOLDFAST_WORKER_DIR": str(self.work),
            "HOLDFAST_TOKEN_FILE": str(self.token_file),
            "HOLDFAST_SERVERS_FILE": str(self.servers_file),
            "HOLDFAST_OUTPUT_DIR": str(self.outputs),
            "PATH": os.environ["PATH"],
            "AGENTS_OWN": "private",
        }
        command = [sys.executable, "-m", "holdfast.agent"]
        with self.log_file.open("wb") as log:
            self.popen = subprocess.Popen(command, env=settings | env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def output(self, claim: str = "c-1") -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self.outputs / claim).read_bytes()
        return b""

    def term(self) -> None:
        self.popen.send_signal(signal.SIGTERM)

    def exit_code(self, seconds: float = 20) -> int:
        return self.popen.wait(seconds)

    def end(self) -> None:
        """Nothing of a test outlives it."""
        self.popen.kill()
        self.popen.wait()
        with contextlib.suppress(FileNotFoundError):
            for line in (self.work / "groups").read_text().splitlines():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(line.split()[0]), signal.SIGKILL)
