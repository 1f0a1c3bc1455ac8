"""Run the activation hook, which prepares a worker for its tenant, and report progress to the server every 3 s."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from .control import Control
from .messages import Directive
from .process import CannotStart, Group
from .tasks import first_of, settle

PROGRESS_SECONDS = 3.0  # a quarter of the 12 s after which the server gives the claim to another worker


class HookFailed(Exception):
    """A hook failed; the message says why."""


async def run_hook(name: str, argv: list[str], env: Mapping[str, str], folder: Path, write: Callable[[bytes], None]) -> None:
    """Runs the hook to its end. Raises HookFailed. A cancellation kills the hook and all processes that it started."""
    try:
        group = await Group.start(argv, env, folder, write)
    except CannotStart as error:
        raise HookFailed(f"{name} could not start: {error.reason}") from None
    try:
        code = await group.wait()
    finally:
        group.kill()
    if code:
        raise HookFailed(f"{name} exited with {code}")


async def activate(
    hook: "asyncio.Task[None]", control: Control, fence: int, ended: "asyncio.Future[Directive]"
) -> Literal["done", "stale", "ended"]:
    """Waits for the hook. Raises HookFailed. If the result is not "done", the hook was killed."""
    going = asyncio.create_task(_report_progress(control, fence))
    try:
        await first_of(hook, going, ended)
        if ended.done():
            return "ended"
        if hook.done():
            hook.result()
            return "done"
        going.result()
        return "stale"
    finally:
        await settle(going, hook)


async def _report_progress(control: Control, fence: int) -> None:
    """Reports progress until the server answers that the claim is no longer this worker's."""
    while await control.progress(fence):  # noqa: ASYNC110 - a periodic report, there is no event
        await asyncio.sleep(PROGRESS_SECONDS)
