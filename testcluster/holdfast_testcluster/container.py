"""One container: its image, its process, its probes and its record."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_testcluster.api import Api
from holdfast_testcluster.fields import FieldProblem, expand, field_of
from holdfast_testcluster.images import ImageMissing, Images
from holdfast_testcluster.probes import attend
from holdfast_testcluster.status import Object, Record, now
from holdfast_testcluster.volumes import VolumeProblem, Volumes, fetch

LAUNCHER = Path(__file__).with_name("launcher.py")
PULL_AGAIN_AFTER = 1.0  # seconds; a real kubelet waits 10 and more, but tests would learn nothing from that
MESSAGE_AT_MOST = 4096  # bytes
FALLBACK_AT_MOST = 2048  # bytes at the end of the log that may be used as the message


@dataclass(frozen=True)
class PodPlace:
    """What the containers of a pod share."""

    pod: Object
    address: str
    folder: Path
    volumes: Volumes
    images: Images
    api: Api
    env: dict[str, str]  # variables that every container gets


class Deadline:
    """A deadline that can be made earlier, but not later."""

    def __init__(self, seconds: float) -> None:
        self._passed = asyncio.Event()
        self.within(seconds)

    def within(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._passed.set)

    async def or_end(self, ended: "asyncio.Future[int]") -> None:
        """Waits until the deadline has passed or the process has ended."""
        passed: asyncio.Future[Any] = asyncio.ensure_future(self._passed.wait())
        try:
            await asyncio.wait([ended, passed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            passed.cancel()

    @property
    def past(self) -> bool:
        return self._passed.is_set()


class Container:
    def __init__(self, record: Record, place: PodPlace, changed: Callable[[], None]) -> None:
        self.record, self._place, self._changed = record, place, changed
        self.folder = place.folder / "containers" / record.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: asyncio.Future[int] | None = None
        self.up = asyncio.Event()  # set when the container runs and has passed its startup probe

    # Run and stop

    async def run(self) -> int:
        """Pulls the image, starts the container and waits for its end. Returns the exit code. A later call is a restart."""
        if self._ended is not None:
            self._make_last()
            self.record.restarts += 1
        await self._pull()
        await self._start(await self._spec())
        assert self._ended
        probes = asyncio.create_task(self._probes())
        try:
            return await asyncio.shield(self._ended)
        finally:
            probes.cancel()

    async def stop(self, deadline: Deadline) -> None:
        """Sends SIGTERM, and SIGKILL when the deadline has passed."""
        if self._ended is None or self._process is None or self._ended.done():
            return
        self._process.send_signal(signal.SIGTERM)
        await deadline.or_end(self._ended)
        if not self._ended.done():
            # SIGUSR1 makes the launcher kill the container; the launcher ends when all its processes are gone
            self._process.send_signal(signal.SIGUSR1)
            await self._ended

    def pause(self, seconds: float) -> None:
        """Reports that the container is waiting for its next restart."""
        self._make_last()
        self.wait_for("CrashLoopBackOff", f"back-off {seconds:.0f}s restarting failed container={self.record.name}")

    def _make_last(self) -> None:
        if "terminated" in self.record.state:
            self.record.last = self.record.state

    def wait_for(self, reason: str, message: str = "") -> None:
        self.record.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        self._changed()

    @property
    def log(self) -> Path:
        return self.folder / f"{self.record.restarts}.log"

    @property
    def previous_log(self) -> Path:
        return self.folder / f"{self.record.restarts - 1}.log"

    @property
    def ended(self) -> bool:
        """Returns whether no process will write to its log any more."""
        return self._ended is not None and self._ended.done()

    # Start

    async def _pull(self) -> None:
        while True:
            try:
                await self._place.images.pull(self.record.spec)
                return
            except ImageMissing as problem:
                self.wait_for("ErrImagePull", str(problem))
                await asyncio.sleep(PULL_AGAIN_AFTER)
                self.wait_for("ImagePullBackOff", f'Back-off pulling image "{self.record.spec["image"]}": {problem}')
                await asyncio.sleep(PULL_AGAIN_AFTER)

    async def _spec(self) -> Object:
        """Returns the task of the launcher. Waits until everything exists that the container refers to."""
        while True:
            try:
                env = await self._env()
                spec = self.record.spec
                argv = [expand(each, env) for each in [*self._place.images.program(spec), *(spec.get("args") or [])]]
                where = {"cwd": spec.get("workingDir") or "/", "mounts": self._mounts()}
                files = {"pid_file": str(self._pid_file), "exit_file": str(self.exit_file)}
                return {"parent": os.getpid(), "argv": argv, "env": env, **where, **files}
            except (FieldProblem, VolumeProblem) as problem:
                self.wait_for("CreateContainerConfigError", str(problem))
                await asyncio.sleep(PULL_AGAIN_AFTER)

    async def _env(self) -> dict[str, str]:
        place, spec = self._place, self.record.spec
        namespace = place.pod["metadata"]["namespace"]
        env = {"PATH": os.environ["PATH"], "HOME": "/", "HOSTNAME": place.pod["metadata"]["name"], **place.env}
        for source in spec.get("envFrom") or []:
            for ref, resource in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if ref in source:
                    data = await fetch(place.api, namespace, resource, source[ref]["name"], source[ref].get("optional", False))
                    env |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
        for variable in spec.get("env") or []:
            value = await self._value(variable, namespace, env)
            if value is not None:
                env[variable["name"]] = value
        return env

    async def _value(self, variable: Object, namespace: str, env: dict[str, str]) -> str | None:
        source = variable.get("valueFrom")
        if source is None:
            return expand(variable.get("value") or "", env)
        if "fieldRef" in source:
            return field_of(self._place.pod, source["fieldRef"]["fieldPath"], self._place.address)
        for ref, resource in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
            if ref in source:
                optional = source[ref].get("optional", False)
                data = await fetch(self._place.api, namespace, resource, source[ref]["name"], optional)
                if source[ref]["key"] not in data and not optional:
                    raise VolumeProblem(f"couldn't find key {source[ref]['key']} in {resource} {source[ref]['name']}")
                found = data.get(source[ref]["key"])
                return None if found is None else found.decode()
        raise FieldProblem(f"a test kubelet has no variables of this kind: {sorted(source)}")

    def _mounts(self) -> list[Object]:
        message = self.folder / "termination-log"
        message.write_bytes(b"")
        message.chmod(0o666)
        mounts: list[Object] = []
        path = self.record.spec.get("terminationMessagePath") or ""
        if path.startswith(("/run/", "/var/run/", "/dev/")):  # because these folders are private to a container
            mounts.append({"source": str(message), "target": path, "read_only": False})
        for each in self.record.spec.get("volumeMounts") or []:
            source = self._place.volumes.path(each["name"])
            if sub := each.get("subPath"):
                source = source / sub
                if not source.exists():
                    source.mkdir(parents=True)
            mounts.append({"source": str(source), "target": each["mountPath"], "read_only": each.get("readOnly", False)})
        return mounts

    async def _start(self, spec: Object) -> None:
        """Returns when the program runs, or when it has failed to start."""
        reading, writing = os.pipe()
        path = self.folder / "launch.json"
        path.write_text(json.dumps(spec | {"report": writing}))
        with self.log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LAUNCHER), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                pass_fds=(writing,),
                env={},
            )
        os.close(writing)
        self._process, self._ended = process, asyncio.get_running_loop().create_future()
        self._problem, self._started_at = "", now()
        self.up.clear()
        self.record.container_id = self.identity
        pidfd = os.pidfd_open(process.pid)
        reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_report(descriptor: int) -> None:
            self._problem = os.read(descriptor, 4096).decode(errors="replace")
            when_readable(pidfd, lambda _: self._record_end(process))  # only now, so that a recorded end already has its reason
            if not reported.done():
                reported.set_result(None)

        when_readable(reading, on_report)
        await reported
        if not self._problem and not self._ended.done():
            self._started_at = now()
            self.record.state = {"running": {"startedAt": self._started_at}}
            self._changed()

    # While it runs, and its end

    async def _probes(self) -> None:
        def probed(started: bool, ready: bool) -> None:
            self.record.started, self.record.ready = started, ready
            if started:
                self.up.set()
            self._changed()

        if await attend(self.record.spec, self._place.address, self._pid_file, probed) == "failed":
            await self.stop(Deadline(self._place.pod["spec"].get("terminationGracePeriodSeconds", 30)))

    @property
    def _pid_file(self) -> Path:
        return self.folder / "pid"

    @property
    def exit_file(self) -> Path:
        """The file exists since the container was started. It holds the exit code after its end."""
        return self.folder / "exit"

    @property
    def identity(self) -> str:
        return f"test://{self._place.pod['metadata']['uid']}/{self.record.name}/{self.record.restarts}"

    def _record_end(self, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        if code < 0:  # the launcher itself was killed, and the container with it
            code = 128 - code
        ended = {**self.end(code), "startedAt": self._started_at, "finishedAt": now()}
        if self._problem:
            ended |= {"exitCode": 128, "reason": "StartError", "message": f"failed to create task for container: {self._problem}"}
        ended["containerID"] = self.record.container_id
        self.record.state = {"terminated": ended}
        self.record.ready = self.record.started = False
        self._changed()
        assert self._ended
        self._ended.set_result(ended["exitCode"])

    def end(self, code: int) -> Object:
        """Returns the exit code, the reason and the termination message of the container."""
        message = self._message(code)
        return {"exitCode": code, "reason": "Error" if code else "Completed", **({"message": message} if message else {})}

    def _message(self, code: int) -> str:
        message = (self.folder / "termination-log").read_bytes()[:MESSAGE_AT_MOST]
        if not message and code != 0 and self.record.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = self.log.read_bytes()[-FALLBACK_AT_MOST:]
        return message.decode(errors="replace")


def when_readable(descriptor: int, act: Callable[[int], None]) -> None:
    """Calls `act` once, as soon as the descriptor is readable. Then closes the descriptor."""
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        loop.remove_reader(descriptor)
        try:
            act(descriptor)
        finally:
            os.close(descriptor)

    loop.add_reader(descriptor, on_readable)
