"""The agent's states: idle → activating → running → (resetting → idle) or exit. A poll is open at all times."""

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Literal, NoReturn

from .activation import HookFailed, activate, run_hook
from .config import Config
from .control import Control, pauses
from .hold import GRACE, Hold, Leave
from .job import environment, forget_payload, write_payload
from .jobs import serve_job
from .last_words import LastWords
from .log import copy_to, log
from .memory import Memory
from .messages import AgentReport, Assignment, Directive, Registration
from .sink import Sink
from .staging import NOT_STAGED
from .tail import LAST_OUTPUT, Tail
from .tasks import first_of, settle

if TYPE_CHECKING:
    from .proxy import Proxy
    from .session import Served

SHORT_ACTIVATION = 0.1  # seconds; a hand-over that finishes within this time needs no separate report of "activating"
SOON = 1.0  # seconds; after a faster answer that changes nothing the agent pauses, otherwise it would poll in a tight loop
FINAL_REPORT_SECONDS = 15.0  # seconds to report "refused" or "failed"; later the server learns it from the end of the process
DRAIN_REPORT_SECONDS = 0.5  # seconds for a free agent to report "draining", because it has to exit at once


class Agent:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.control = Control(config, self._leave_if_silent)
        self.words = LastWords(self.control)
        self.registration: Registration | None = None
        self.hold: Hold | None = None
        self.greatest_fence = 0  # the greatest fence that this agent ever held
        self.served_fence: int | None = None
        self.endpoint: str | None = None
        self.draining = False
        self.proxy: Proxy | None = None
        self.served: Served | None = None
        self.memory: Memory | None = None  # only set where the agent can be restarted without its worker
        self.staged = False
        self._doing = "idle"
        self._report = AgentReport(doing="idle")
        self._changed = asyncio.Event()
        self._offers: asyncio.Queue[Hold] = asyncio.Queue()
        self._leaving: asyncio.Future[Leave] = asyncio.get_running_loop().create_future()
        self._polling: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Runs the agent until it ends and returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        copy_to(self.words.note)
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
            if self.config.stage is not None and not self.staged:
                code = code or NOT_STAGED  # an exit code of 0 would start the worker's container
            log("exit", code=code, why=leave.reason)
            if self.registration is not None:
                await self.words.send_last(clean=code == 0)
            self.control.close()
            return code
        finally:
            if self.served is not None:
                self.served.kill()

    async def _tidy_up(self) -> None:
        """Stops serving. A free agent reports that it drains, so that no claim is assigned to it."""
        if self.proxy is not None:
            self.proxy.stop()
        for task in (self._polling, self._sending):
            if task is not None:
                task.cancel()
        draining_report = None
        if self.draining and self.hold is None and self.registration is not None:
            draining_report = asyncio.create_task(self.control.send_report(self._report, DRAIN_REPORT_SECONDS))
        if self.served is not None:
            await self.served.stop()
        if draining_report is not None:
            await asyncio.wait({draining_report})
        forget_payload(self.config.folder)

    async def _work(self) -> None:
        """Registers and serves claims. Ends by raising Leave."""
        self.registration = await self.control.register()
        log("registered", mode=self.registration.mode)
        self._sending = asyncio.create_task(self.words.keep_sending())
        if self.registration.mode == "job":
            await serve_job(self, self.registration)
        elif self.registration.mode == "session":
            from .sessions import serve_sessions  # a job never needs the proxy

            await serve_sessions(self, self.registration)
        else:
            await self.fail(f"this agent knows no mode {self.registration.mode!r}")

    # The steps of a claim in both modes

    async def next_hold(self) -> Hold:
        """Reports "idle" and waits for the next claim."""
        self.report_state("idle")
        self._start_polling()
        return await self._offers.get()

    def resume(self, held: Assignment) -> Hold:
        """Continues the claim that was held before a restart. Its holder gets no access until the server confirms the claim."""
        self.greatest_fence, self.hold = held.fence, Hold(held)
        self.words.hide(held)
        self.report_state("running")
        self._start_polling()
        return self.hold

    def _start_polling(self) -> None:
        if self._polling is None:
            self._polling = asyncio.create_task(self._keep_polling())

    async def activate_and_acknowledge(
        self, hold: Hold, extra: dict[str, str], sink: Sink
    ) -> Literal["accepted", "stale", "ended"]:
        """Activates the worker and acknowledges the claim. Nothing may start unless the result is "accepted" (P8)."""
        assert self.registration
        assignment, hook, tail = hold.assignment, self.registration.worker.activate, Tail(LAST_OUTPUT)

        def write(data: bytes) -> None:
            sink.write_error(data)  # not the command's own stdout
            tail.write(data)
            self.words.write(data)

        try:
            env = extra | environment(assignment, write_payload(self.config.folder, assignment))
            if hook:
                running = asyncio.create_task(run_hook("activate", hook, env, self.config.folder, write))
                activated = await activate(running, self.control, assignment.fence, hold.ended)
                if activated != "done":
                    log("not ours", claim=assignment.claim, why=activated)
                    return activated
            if self.memory is not None:
                self.memory.hold(assignment, self.served_fence)
        except (HookFailed, OSError) as error:
            await self.refuse(hold, str(error), tail)
        return await self.acknowledge(hold)

    async def acknowledge(self, hold: Hold) -> Literal["accepted", "stale", "ended"]:
        """Acknowledges the claim. "stale": the server refused it; "ended": the claim ended meanwhile."""
        assignment = hold.assignment
        asking = asyncio.create_task(self.control.acknowledge(assignment.fence, self.endpoint))
        await first_of(asking, hold.ended)
        if hold.ended.done():
            asking.cancel()
            return "ended"
        hold.accepted = asking.result()
        log("accepted" if hold.accepted else "not ours", claim=assignment.claim, fence=assignment.fence)
        return "accepted" if hold.accepted else "stale"

    def let_go(self) -> None:
        """Forgets the claim that was held. The worker is not reset yet. A draining agent leaves then."""
        self.hold = None
        if self.memory is not None:
            self.memory.let_go(self.served_fence, reset=False)
        forget_payload(self.config.folder)
        if self.draining:
            raise Leave(0, "drained")

    async def refuse(self, hold: Hold, reason: str, tail: Tail | None = None) -> NoReturn:
        """Refuses the claim, which goes to another worker, and leaves. `tail` is what its hook or its served process wrote."""
        log("refusing", claim=hold.assignment.claim, why=reason)
        output = self.words.shown(tail) if tail is not None else ""
        await self.control.refuse(hold.assignment.fence, reason, output, FINAL_REPORT_SECONDS)
        raise Leave(1, reason)

    async def fail(self, reason: str) -> NoReturn:
        """Reports a failure and leaves. In doubt the worker is replaced, so that no tenant can see data of another tenant."""
        log("failed", why=reason)
        output = self.words.shown(self.served.tail) if self.served is not None else ""
        await self.control.failed(reason, output, FINAL_REPORT_SECONDS)
        raise Leave(1, reason)

    # Reports to the server, and its directives

    def report_state(self, doing: str) -> None:
        """Changes the state that the agent reports. The open poll is repeated with it."""
        self._doing = doing
        held = self.hold.assignment if self.hold else None
        self._report = AgentReport(
            doing="draining" if self.draining else doing,
            claim=held.claim if held else None,
            fence=held.fence if held else None,
            tenant=held.tenant if held else None,
            credential=held.credential if held else None,
            served_fence=self.served_fence,
            endpoint=self.endpoint,
        )
        self._changed.set()
        log(self._report.doing, claim=self._report.claim, fence=self._report.fence, endpoint=self.endpoint)

    async def _keep_polling(self) -> None:
        """Keeps one poll open, and obeys its answers."""
        assert self.registration
        pause = pauses()
        while True:
            report, began = self._report, time.monotonic()
            self._changed.clear()
            if report.doing == "activating" and await self._changed_within(SHORT_ACTIVATION):
                continue
            poll = asyncio.create_task(self.control.poll(report, self.registration.poll_seconds))
            changed = asyncio.create_task(self._changed.wait())
            try:
                await first_of(poll, changed)
                if not poll.done():
                    continue  # its report is out of date: poll again with the new one
                self._obey(poll.result())
            except Leave as leave:
                self.leave(leave)
            except Exception as error:  # a bug in here must not end a busy worker
                log("poll failed", why=f"{type(error).__name__}: {error}")
            finally:
                poll.cancel()
                changed.cancel()
            if self._report is not report or time.monotonic() - began > SOON:
                pause = pauses()
            else:
                await self._changed_within(min(pause(), SOON))

    async def _changed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    def _obey(self, directive: Directive) -> None:
        if directive.do == "hold" and directive.assignment is not None:
            self._consider_offer(directive.assignment)
        elif directive.do == "end" and self.hold is not None and directive.fence == self.hold.assignment.fence:
            log("end", fence=directive.fence, why=directive.reason)
            self.hold.end(directive)
        elif directive.do == "exit" and self.hold is None:
            self.leave(Leave(0, directive.reason or "condemned"))
        elif directive.do != "nothing":
            log("ignored", directive=directive.do, fence=directive.fence)

    def _consider_offer(self, offered: Assignment) -> None:
        """Accepts an offered claim if the agent is idle and the fence is new; otherwise ignores it."""
        held = self.hold.assignment if self.hold else None
        if held is not None and (held.claim, held.fence) == (offered.claim, offered.fence):
            return  # the server repeats the offer until it is acknowledged
        if self._doing != "idle" or self.draining or offered.fence <= self.greatest_fence:
            log("ignored", directive="hold", fence=offered.fence, greatest=self.greatest_fence)
            return
        self.greatest_fence = offered.fence
        self.hold = Hold(offered)
        self.words.hide(offered)
        self._offers.put_nowait(self.hold)
        self.report_state("activating")

    def leave(self, leave: Leave) -> None:
        if not self._leaving.done():
            self._leaving.set_result(leave)

    def drain(self) -> None:
        """Handles SIGTERM: accepts no more claims. A free agent leaves at once; a busy agent finishes within its grace."""
        if self.draining:
            return
        self.draining = True
        self.report_state(self._doing)
        if self.hold is None or self.registration is None:
            self.leave(Leave(0, "SIGTERM while free"))
            return
        over = Directive(do=GRACE, reason="the worker's grace ran out")
        asyncio.get_running_loop().call_later(self.registration.grace, self.hold.end, over)

    def _leave_if_silent(self, seconds: float) -> None:
        """Leaves if the agent is free and reached no server for too long, because the worker would leak. A busy agent goes on."""
        if self.hold is None and seconds >= self.config.lonely:
            raise Leave(1, f"no server has accepted a call for {seconds:.0f} s")
