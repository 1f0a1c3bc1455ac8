"""Probes a running container: whether it has started, is ready, and is alive."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import aiohttp

from holdfast_testcluster.status import Object

Report = Callable[[bool, bool], None]  # called with: started, ready


async def attend(container: Object, address: str, pid_file: Path, report: Report) -> Literal["failed"]:
    """Reports changes until cancelled. Returns if the startup or liveness probe failed, so that the container must be stopped."""

    def asks(kind: str) -> "Probe | None":
        return Probe(container[kind], container, address, pid_file) if kind in container else None

    startup, readiness, liveness = asks("startupProbe"), asks("readinessProbe"), asks("livenessProbe")
    if startup:
        report(False, False)
        if not await startup.turns(True):
            return "failed"
    report(True, readiness is None)

    async def watch_readiness(probe: Probe) -> None:
        while True:
            await probe.turns(True, forever=True)
            report(True, True)
            await probe.turns(False, forever=True)
            report(True, False)

    async def watch_life(probe: Probe) -> None:
        await probe.turns(False, forever=True)

    watches = [asyncio.create_task(watch_readiness(readiness))] if readiness else []
    try:
        await (watch_life(liveness) if liveness else asyncio.Event().wait())
        return "failed"
    finally:
        for each in watches:
            each.cancel()


class Probe:
    def __init__(self, spec: Object, container: Object, address: str, pid_file: Path) -> None:
        self._spec, self._address, self._pid_file = spec, address, pid_file
        self._ports: dict[str, int] = {
            each["name"]: each["containerPort"] for each in container.get("ports") or [] if "name" in each
        }

    async def turns(self, to: bool, forever: bool = False) -> bool:
        """Returns True after enough results `to` in a row. Returns False after enough opposite results, unless `forever`."""
        await asyncio.sleep(self._spec.get("initialDelaySeconds", 0))
        needed = {True: self._spec.get("successThreshold", 1), False: self._spec.get("failureThreshold", 3)}
        seen = {True: 0, False: 0}
        while True:
            good = await self._ask()
            seen[good] += 1
            seen[not good] = 0
            if seen[to] >= needed[to]:
                return True
            if seen[not to] >= needed[not to] and not forever:
                return False
            await asyncio.sleep(self._spec.get("periodSeconds", 10))

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(self._spec.get("timeoutSeconds", 1)):
                if "tcpSocket" in self._spec:
                    return await self._connects(self._spec["tcpSocket"])
                if "httpGet" in self._spec:
                    return await self._gets(self._spec["httpGet"])
                return await self._runs(self._spec["exec"]["command"])
        except (TimeoutError, OSError, aiohttp.ClientError):
            return False

    async def _connects(self, spec: Object) -> bool:
        _, writer = await asyncio.open_connection(spec.get("host") or self._address, self._port(spec))
        writer.close()
        return True

    async def _gets(self, spec: Object) -> bool:
        scheme = spec.get("scheme", "HTTP").lower()
        url = f"{scheme}://{spec.get('host') or self._address}:{self._port(spec)}{spec.get('path') or '/'}"
        headers = {each["name"]: each["value"] for each in spec.get("httpHeaders") or []}
        unchecked = ssl._create_unverified_context() if scheme == "https" else True
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=unchecked) as response:
            return 200 <= response.status < 400

    async def _runs(self, command: list[str]) -> bool:
        """Runs a command inside the container, in its namespaces and with its environment."""
        pid = self._pid_file.read_text()
        env = dict(each.split(b"=", 1) for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in each)
        entering = ["nsenter", "--target", pid, "--mount", "--pid", "--", *command]
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*entering, stdin=quiet, stdout=quiet, stderr=quiet, env=env)
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()

    def _port(self, spec: Object) -> int:
        port: int | str = spec["port"]
        return int(self._ports.get(str(port), port))
