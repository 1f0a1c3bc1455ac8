"""Runs one real agent in its own process, and lets a test block its commands."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import holdfast

TOKEN = "bootstrap-1"


def waits_for(gate: Path) -> str:
    """Returns a line of shell that waits until the test creates this file."""
    return f"until test -e {gate}; do sleep 0.02; done"


class Running:
    """One agent process, its folder and its output."""

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
            "PYTHONPATH": str(Path(holdfast.__file__).parents[1]),  # the agent of this checkout, wherever it was installed from
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

    def exit_code(self, seconds: float = 60) -> int:
        return self.popen.wait(seconds)

    def end(self) -> None:
        """Ends the agent and everything that it started."""
        self.popen.kill()
        self.popen.wait()
        with contextlib.suppress(FileNotFoundError):
            for line in (self.work / "groups").read_text().splitlines():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(line.split()[0]), signal.SIGKILL)
