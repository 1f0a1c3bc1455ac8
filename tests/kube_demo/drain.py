"""Runs `kubectl drain` of a node while the demo goes on."""

import asyncio
import contextlib
from pathlib import Path

from holdfast_testcluster import binaries
from holdfast_testcluster.access import Access

REFUSED = "Cannot evict pod"
TIMEOUT = 120  # seconds; a pod that has ended may stay for one minute of these, so that its record can be read


class Drain:
    """`async with Drain(access, kubeconfig, node) as drain` starts a drain. The end of the block kills it if it still runs."""

    def __init__(self, access: Access, kubeconfig: Path, node: str) -> None:
        self._env = access.kubectl_env(kubeconfig)
        self.arguments = ["drain", node, "--delete-emptydir-data", f"--timeout={TIMEOUT}s"]
        self._lines: list[str] = []

    async def __aenter__(self) -> "Drain":
        self._process = await asyncio.create_subprocess_exec(
            str(binaries.path("kubectl")),
            *self.arguments,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C ends the demo and not kubectl
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._reader.cancel()
        await self._process.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._lines.append(line.decode(errors="replace").rstrip())

    def refused(self, worker: str = "") -> int:
        """Returns how many evictions of this worker, or of any worker, were refused by a disruption budget so far."""
        return sum(REFUSED in line and worker in line for line in self._lines)

    async def ended(self) -> str:
        """Waits until the drain is done, and returns its last line."""
        await self._reader
        code = await self._process.wait()
        assert code == 0, "\n".join(self._lines)
        return self._lines[-1]
