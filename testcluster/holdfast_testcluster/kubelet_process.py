"""Runs a test kubelet in its own process: `with KubeletProcess(access, folder, namespace="n", nodes=3) as kubelet`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast_testcluster.access import Access
from holdfast_testcluster.kubelet import READY
from holdfast_testcluster.processes import end, spawn, tail
from holdfast_testcluster.status import Object

READY_WITHIN = 60.0  # seconds; it takes about one
LOOK_EVERY = 0.02


class KubeletProcess:
    """Nodes are named `<prefix>-1…`. With a namespace they serve only that one. `images` is image -> argv, as in `images.py`."""

    def __init__(
        self,
        access: Access,
        folder: Path,
        *,
        namespace: str | None = None,
        nodes: int = 1,
        prefix: str | None = None,
        images: dict[str, list[str]] | None = None,
        hollow: bool = False,
        options: tuple[str, ...] = (),  # further options of `python -m holdfast_testcluster.kubelet`
    ) -> None:
        self.access, self.folder, self.namespace = access, folder, namespace
        self._prefix = prefix or namespace or "node"
        self.nodes = [f"{self._prefix}-{number}" for number in range(1, nodes + 1)]
        self._options = [*(["--hollow"] if hollow else []), *(["--namespace", namespace] if namespace else []), *options]
        self._images: Object = {"run": dict(images or {}), "pull_seconds": {}}
        self.log = folder / "kubelet.log"
        self.process: subprocess.Popen[bytes] | None = None

    # Start and stop

    def __enter__(self) -> "KubeletProcess":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when nodes are registered and pods are watched. After `kill`, these are the same machines after a reboot."""
        assert self.process is None, "runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_images()
        begin = self.log.stat().st_size if self.log.exists() else 0
        command = ["--kubeconfig", str(self.access.kubeconfig), "--folder", str(self.folder), "--prefix", self._prefix]
        command += ["--nodes", str(len(self.nodes)), "--images", str(self.folder / "images.json"), *self._options]
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        self.process = spawn([sys.executable, "-m", "holdfast_testcluster.kubelet", *command], self.log, env)
        deadline = time.monotonic() + READY_WITHIN
        while f" {READY}\n" not in self.log.read_text()[begin:]:
            assert self.process.poll() is None, f"the kubelet ended: {tail(self.log)}"
            assert time.monotonic() < deadline, f"the kubelet was not ready within {READY_WITHIN} s: {tail(self.log)}"
            time.sleep(LOOK_EVERY)

    def stop(self) -> None:
        """Stops it cleanly: it kills its containers and deletes its pods and nodes. Fails if the kubelet itself had an error."""
        if self.process:
            end(self.process, grace=15)
            self.process = None
            assert " ERROR " not in self.log.read_text(), self.log.read_text()

    def kill(self) -> None:
        """Crashes all its nodes: the containers die, and their objects stay."""
        assert self.process
        end(self.process, grace=0)
        self.process = None

    def pause(self) -> None:
        """Pauses the kubelet, so that it reports and does nothing. Its containers go on."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    # Images

    def provide_image(self, name: str, argv: list[str], pull_seconds: float = 0) -> None:
        """Makes an image available for pulls from now on."""
        self._images["run"][name] = argv
        self._images["pull_seconds"][name] = pull_seconds
        self._write_images()

    def _write_images(self) -> None:
        path = self.folder / "images.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self._images))
        fresh.rename(path)

    # Processes

    def pid(self, uid: str, container: str) -> int | None:
        """Returns the PID of a container's first process on this machine, also after its end."""
        path = self.folder / "pods" / uid / "containers" / container / "pid"
        text = path.read_text() if path.exists() else ""
        return int(text) if text else None

    def log_of(self, uid: str, container: str, restart: int = 0) -> str:
        return (self.folder / "pods" / uid / "containers" / container / f"{restart}.log").read_text(errors="replace")

    def volume(self, uid: str, name: str) -> Path:
        return self.folder / "pods" / uid / "volumes" / name
