"""The small parts of the agent: its log lines, its tasks, a hold, and the reports of an activation."""

import asyncio
import re

import pytest

from holdfast.agent import log as logging
from holdfast.agent.activation import PROGRESS_SECONDS, HookFailed, activate
from holdfast.agent.hold import Hold, Leave
from holdfast.agent.log import log, set_worker
from holdfast.agent.messages import Assignment, Directive
from holdfast.agent.tasks import first_of, settle
from virtual_time import on_virtual_time, passed


def test_a_log_line_names_time_worker_event_and_facts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_worker", "-")
    monkeypatch.setattr(logging.time, "time", lambda: 1_700_000_123.0625)
    log("exit", code=0, why="", claim=None)
    set_worker("w-1")
    log("refused", why="two words", call="ack", text="a\nb")
    log("idle")
    assert capsys.readouterr().err.splitlines() == [
        "2023-11-14T22:15:23.062Z -                exit         code=0",
        "2023-11-14T22:15:23.062Z w-1              refused      why='two words' call=ack text='a\\nb'",
        "2023-11-14T22:15:23.062Z w-1              idle",
    ]


def test_a_log_line_can_be_read_while_the_agent_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        written, flushed = "", ""

        def write(self, text: str) -> None:
            self.written += text

        def flush(self) -> None:
            self.flushed = self.written

    stream = Stream()
    monkeypatch.setattr(logging.sys, "stderr", stream)
    log("idle")
    assert re.search(r"idle\n$", stream.flushed)


def test_the_first_of_several_ends_the_wait_and_the_others_go_on() -> None:
    async def run() -> None:
        quick, slow = asyncio.create_task(asyncio.sleep(1)), asyncio.create_task(asyncio.sleep(5))
        await first_of(slow, quick)
        assert (passed(), quick.done(), slow.done()) == (1, True, False)

    on_virtual_time(run())


def test_settled_tasks_have_cleaned_up_and_their_errors_are_dropped() -> None:
    async def run() -> None:
        cleaned = []

        async def careful() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(1)
                cleaned.append(True)

        async def broken() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                raise ValueError("a defect while it cleans up")

        tasks = [asyncio.create_task(work) for work in (careful(), broken())]
        await asyncio.sleep(0)
        await settle(*tasks)
        assert (cleaned, passed()) == ([True], 1)
        unread = [getattr(task, "_log_traceback") for task in tasks]  # noqa: B009 - no public name
        assert unread == [False, False], "asyncio reports an error that was never read when its task is collected"

    on_virtual_time(run())


def test_the_first_end_of_a_hold_counts() -> None:
    async def run() -> None:
        hold = Hold(Assignment("c-1", 7, "acme"))
        assert (hold.accepted, hold.ended.done()) == (False, False)
        hold.end(Directive(do="end", reason="first"))
        hold.end(Directive(do="end", reason="second"))
        assert hold.ended.result().reason == "first"

    on_virtual_time(run())


def test_a_leave_carries_its_code_and_its_reason() -> None:
    leave = Leave(3, "because")
    assert (leave.code, leave.reason, str(leave)) == (3, "because", "because")


class Control:
    """Answers reports of progress: the claim is this worker's for so many of them."""

    def __init__(self, ours: int = 1000) -> None:
        self.ours = ours
        self.times: list[float] = []

    async def progress(self, fence: int) -> bool:
        assert fence == 7
        self.times.append(passed())
        return len(self.times) <= self.ours


async def activated(hook: "asyncio.Task[None]", control: Control, ended: "asyncio.Future[Directive] | None" = None) -> str:
    future = ended or asyncio.get_running_loop().create_future()
    return await activate(hook, control, 7, future)  # type: ignore[arg-type]


def test_an_activation_reports_progress_every_three_seconds_until_its_hook_is_done() -> None:
    async def run() -> None:
        control = Control()
        hook = asyncio.create_task(asyncio.sleep(10))
        assert await activated(hook, control) == "done"
        assert (control.times, PROGRESS_SECONDS) == ([0, 3, 6, 9], 3.0)
        await asyncio.sleep(10)
        assert len(control.times) == 4, "the reports end with the hook"

    on_virtual_time(run())


def test_an_activation_whose_claim_went_elsewhere_kills_its_hook() -> None:
    async def run() -> None:
        hook = asyncio.create_task(asyncio.sleep(100))
        assert await activated(hook, Control(ours=2)) == "stale"
        assert (hook.cancelled(), passed()) == (True, 6)

    on_virtual_time(run())


def test_an_activation_whose_claim_ended_kills_its_hook() -> None:
    async def run() -> None:
        ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(5, ended.set_result, Directive(do="end"))
        hook = asyncio.create_task(asyncio.sleep(100))
        assert await activated(hook, Control(), ended) == "ended"
        assert (hook.cancelled(), passed()) == (True, 5)

    on_virtual_time(run())


def test_an_end_at_the_same_time_as_the_hooks_counts_as_the_end_of_the_claim() -> None:
    async def run() -> None:
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(Directive(do="end"))
        hook = asyncio.create_task(asyncio.sleep(0))
        assert await activated(hook, Control(), ended) == "ended"

    on_virtual_time(run())


def test_a_defect_in_the_reports_is_the_activations_error() -> None:
    class Broken(Control):
        async def progress(self, fence: int) -> bool:
            raise ValueError("a defect")

    async def run() -> None:
        hook = asyncio.create_task(asyncio.sleep(100))
        with pytest.raises(ValueError, match="a defect"):
            await activated(hook, Broken())
        assert hook.cancelled()

    on_virtual_time(run())


def test_a_hook_that_failed_is_the_activations_error() -> None:
    async def run() -> None:
        async def fails() -> None:
            raise HookFailed("activate exited with 3")

        with pytest.raises(HookFailed, match="exited with 3"):
            await activated(asyncio.create_task(fails()), Control())

    on_virtual_time(run())
