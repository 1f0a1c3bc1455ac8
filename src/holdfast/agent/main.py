"""The agent's life: idle → activating → running → (resetting → idle) or exit, one poll always under way."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from .activation import HookFailed, activate, run_hook
from .config import BadConfig, Config, from_environment
from .control import Control, pauses
from .hold import GRACE, NOT_OURS, Hold, Leave
from .job import environment, file_name, forget_payload, run, store_result, write_payload
from .log import log, speak_for
from .memory import Memory
from .messages import AgentReport, Assignment, Directive, Registration
from .process import Sink
from .staging import NOT_STAGED, sign, stage, unstage
from .tasks import first_of, settle

if TYPE_CHECKING:
    from .proxy import Proxy
    from .session import Served

SHORT_ACTIVATION = 0.1  # seconds: a hand-over that is done by then needs no poll of its own
SOON = 1.0  # an answer within this that changes nothing must not become a storm of polls
LAST_WORDS = 15.0  # for "refused" and "failed"; after that the end of our process tells it
GOODBYE = 0.5  # for "draining" when we are free: at once means at once


class Agent:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.control = Control(config, self._silent)
        self.registration: Registration | None = None
        self.hold: Hold | None = None
        self.greatest_fence = 0  # of all that we ever held
        self.reset_fence: int | None = None
        self.endpoint: str | None = None
        self.draining = False
        self.proxy: Proxy | None = None
        self.served: Served | None = None
        self.memory: Memory | None = None  # where we can be restarted alone
        self._staged = False
        self._doing = "idle"
        self._word = AgentReport(doing="idle")
        self._changed = asyncio.Event()
        self._offers: asyncio.Queue[Hold] = asyncio.Queue()
        self._leaving: asyncio.Future[Leave] = asyncio.get_running_loop().create_future()
        self._beating: asyncio.Task[None] | None = None

    async def live(self) -> int:
        """The exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        work = asyncio.create_task(self._work())
        try:
            await first_of(work, self._leaving)
            if not work.done():
                await settle(work)
                leave = self._leaving.result()
            else:
                error = work.exception()
                leave = error if isinstance(error, Leave) else Leave(1, f"{type(error).__name__}: {error}")
            await self._tidy_up()
            code = leave.code
            if self.config.stage is not None and not self._staged:
                code = code or NOT_STAGED  # our end with 0 would start the worker's container
            log("exit", code=code, why=leave.reason)
            return code
        finally:
            if self.served is not None:
                self.served.kill()

    async def _tidy_up(self) -> None:
        """Nobody is served from here on. A free agent says so, lest the next claim waits for it in vain."""
        if self.proxy is not None:
            self.proxy.stop()
        if self._beating is not None:
            self._beating.cancel()
        goodbye = None
        if self.draining and self.hold is None and self.registration is not None:
            goodbye = asyncio.create_task(self.control.tell(self._word, GOODBYE))
        if self.served is not None:
            await self.served.stop()
        if goodbye is not None:
            await asyncio.wait({goodbye})
        forget_payload(self.config.folder)
        self.control.close()

    async def _work(self) -> None:
        """Ends by raising Leave."""
        self.registration = await self.control.register()
        log("registered", mode=self.registration.mode)
        if self.registration.mode == "job":
            await self._one_job(self.registration)
        elif self.registration.mode == "session":
            from .sessions import serve_sessions  # a job never needs the proxy

            await serve_sessions(self, self.registration)
        else:
            await self.fail(f"this agent knows no mode {self.registration.mode!r}")

    async def _one_job(self, registration: Registration) -> None:
        hooks, folder = registration.worker, self.config.folder
        hold = await self.next_hold()
        assignment = hold.assignment
        sink = Sink(self.config.outputs / file_name(assignment.claim), registration.output_limit)
        if self.config.stage is not None:
            await self._stage(self.config.stage, hold, hooks.run or assignment.command)
        outcome = await self.hand_over(hold, {}, sink)
        if outcome != "accepted":
            if self.config.stage is not None:
                unstage(self.config.stage)
            sink.close()
            if outcome == "ended" and not hooks.activate:
                raise Leave(0, "its claim ended before it began")
            await self.fail(NOT_OURS)
        if self.config.stage is not None:
            if self.config.termination is not None:
                sign(self.config.termination, assignment)
            self._staged = True
            raise Leave(0, "its job is the next container's")
        self.say("running")
        env = environment(assignment, folder / "payload.json")
        result = await run(hooks.run or assignment.command, env, folder, sink, hold.ended)
        log("ended", claim=assignment.claim, code=result.exit_code, why=result.reason)
        store_result(folder, assignment, result)
        kept = await self.control.result(assignment.fence, result.exit_code, result.reason)
        raise Leave(0, "its result was taken" if kept else "its claim had ended otherwise")

    async def _stage(self, folder: Path, hold: Hold, argv: list[str]) -> None:
        """Before the acknowledgement: after it nothing may fail. Nothing starts while we live."""
        try:
            stage(folder, hold.assignment, argv)
        except OSError as error:
            await self.refuse(hold, f"its job could not be staged: {error.strerror}")

    # What a claim goes through in both modes

    async def next_hold(self) -> Hold:
        self.say("idle")
        self._speak()
        return await self._offers.get()

    def take_up(self, held: Assignment) -> Hold:
        """What we held before we were restarted. Nobody is let in before it proves to be ours still."""
        self.greatest_fence, self.hold = held.fence, Hold(held)
        self.say("running")
        self._speak()
        return self.hold

    def _speak(self) -> None:
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())

    async def hand_over(self, hold: Hold, extra: dict[str, str], sink: Sink) -> Literal["accepted", "stale", "ended"]:
        """Activate and acknowledge. Nothing may start unless it was accepted (P8)."""
        assert self.registration
        assignment, hook = hold.assignment, self.registration.worker.activate
        try:
            env = extra | environment(assignment, write_payload(self.config.folder, assignment))
            if hook:
                running = asyncio.create_task(run_hook("activate", hook, env, self.config.folder, sink.write))
                outcome = await activate(running, self.control, assignment.fence, hold.ended)
                if outcome != "done":
                    log("not ours", claim=assignment.claim, why=outcome)
                    return outcome
            if self.memory is not None:
                self.memory.hold(assignment, self.reset_fence)
        except (HookFailed, OSError) as error:
            await self.refuse(hold, str(error))
        return await self.acknowledge(hold)

    async def acknowledge(self, hold: Hold) -> Literal["accepted", "stale", "ended"]:
        assignment = hold.assignment
        asking = asyncio.create_task(self.control.acknowledge(assignment.fence, self.endpoint))
        await first_of(asking, hold.ended)
        if hold.ended.done():
            asking.cancel()
            return "ended"
        hold.accepted = asking.result()
        log("accepted" if hold.accepted else "not ours", claim=assignment.claim, fence=assignment.fence)
        return "accepted" if hold.accepted else "stale"

    def let_go(self, *, reset: bool = True) -> None:
        """We hold nothing any more. One that drains has nothing left to do."""
        self.hold = None
        if self.memory is not None:
            self.memory.let_go(self.reset_fence, reset=reset)
        forget_payload(self.config.folder)
        if self.draining:
            raise Leave(0, "drained")

    async def refuse(self, hold: Hold, reason: str) -> NoReturn:
        """Its claim goes to another worker, and this one goes."""
        log("refusing", claim=hold.assignment.claim, why=reason)
        await self.control.refuse(hold.assignment.fence, reason, LAST_WORDS)
        raise Leave(1, reason)

    async def fail(self, reason: str) -> NoReturn:
        """On doubt the worker goes: another is made, and no tenant meets what this one may still hold."""
        log("failed", why=reason)
        await self.control.failed(reason, LAST_WORDS)
        raise Leave(1, reason)

    # What we say, and what we are told

    def say(self, doing: str) -> None:
        self._doing = doing
        held = self.hold.assignment if self.hold else None
        self._word = AgentReport(
            doing="draining" if self.draining else doing,
            claim=held.claim if held else None,
            fence=held.fence if held else None,
            tenant=held.tenant if held else None,
            credential=held.credential if held else None,
            reset_fence=self.reset_fence,
            endpoint=self.endpoint,
        )
        self._changed.set()
        log(self._word.doing, claim=self._word.claim, fence=self._word.fence, endpoint=self.endpoint)

    async def _beat(self) -> None:
        assert self.registration
        pause = pauses()
        while True:
            word, began = self._word, time.monotonic()
            self._changed.clear()
            if word.doing == "activating" and await self._changed_within(SHORT_ACTIVATION):
                continue
            poll = asyncio.create_task(self.control.poll(word, self.registration.poll_seconds))
            changed = asyncio.create_task(self._changed.wait())
            try:
                await first_of(poll, changed)
                if not poll.done():
                    continue  # what it says is no longer so: say it anew
                self._obey(poll.result())
            except Leave as leave:
                self.leave(leave)
            except Exception as error:  # a fault in here must not end a busy worker
                log("poll failed", why=f"{type(error).__name__}: {error}")
            finally:
                poll.cancel()
                changed.cancel()
            if self._word is not word or time.monotonic() - began > SOON:
                pause = pauses()
            else:
                await self._changed_within(min(pause(), SOON))

    async def _changed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    def _obey(self, told: Directive) -> None:
        if told.do == "hold" and told.assignment is not None:
            self._consider(told.assignment)
        elif told.do == "end" and self.hold is not None and told.fence == self.hold.assignment.fence:
            log("told: end", fence=told.fence, why=told.reason)
            self.hold.end(told)
        elif told.do == "exit" and self.hold is None:
            self.leave(Leave(0, told.reason or "condemned"))
        elif told.do != "nothing":
            log("ignored", told=told.do, fence=told.fence)

    def _consider(self, offered: Assignment) -> None:
        held = self.hold.assignment if self.hold else None
        if held is not None and (held.claim, held.fence) == (offered.claim, offered.fence):
            return  # repeated until acknowledged
        if self._doing != "idle" or self.draining or offered.fence <= self.greatest_fence:
            log("ignored", told="hold", fence=offered.fence, greatest=self.greatest_fence)
            return
        self.greatest_fence = offered.fence
        self.hold = Hold(offered)
        self._offers.put_nowait(self.hold)
        self.say("activating")

    def leave(self, leave: Leave) -> None:
        if not self._leaving.done():
            self._leaving.set_result(leave)

    def drain(self) -> None:
        """SIGTERM: take nothing more. A free agent leaves at once; a busy one finishes within its grace."""
        if self.draining:
            return
        self.draining = True
        self.say(self._doing)
        if self.hold is None or self.registration is None:
            self.leave(Leave(0, "SIGTERM while free"))
            return
        over = Directive(do=GRACE, reason="the worker's grace ran out")
        asyncio.get_running_loop().call_later(self.registration.grace, self.hold.end, over)

    def _silent(self, seconds: float) -> None:
        """A busy agent never gives up; a free one that nobody can reach is of no use, and would leak."""
        if self.hold is None and seconds >= self.config.lonely:
            raise Leave(1, f"no server has listened for {seconds:.0f} s")


def main() -> int:
    """The exit code: 0 done, 1 failed, 2 wrong settings, a session's own when it dies while held."""
    try:
        config = from_environment(os.environ)
    except BadConfig as error:
        print(f"holdfast agent: {error}", file=sys.stderr)
        return 2
    speak_for(config.worker)

    async def life() -> int:
        return await Agent(config).live()

    # Not asyncio.run, which would wait for threads that are stuck in name resolution.
    return asyncio.new_event_loop().run_until_complete(life())
