"""`kubectl drain` of a node, which goes on beside the story."""

import asyncio
import contextlib
from pathlib import Path

from holdfast_testcluster import binaries
from holdfast_testcluster.access import Access

REFUSED = "Cannot evict pod"
TIMEOUT = 120  # seconds: a pod that ended may keep its record for one minute of these


class Drain:
    """`async with Drain(access, kubeconfig, node) as drain`; it is ended with the block, if it has not ended before."""

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
            start_new_session=True,  # Ctrl-C is for the story
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
        """How many evictions a budget has refused so far, of this worker or of any."""
        return sum(REFUSED in line and worker in line for line in self._lines)

    async def ended(self) -> str:
        """Its last line, once it is done."""
        await self._reader
        code = await self._process.wait()
        assert code == 0, "\n".join(self._lines)
        return self._lines[-1]
