"""Make a worker its tenant's before anything is served, saying every 3 s that it goes on."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from .control import Control
from .messages import Directive
from .process import CannotStart, Group
from .tasks import first_of, settle

PROGRESS_SECONDS = 3.0  # a fifth of the 15 s after which the server gives the claim to another


class HookFailed(Exception):
    """A hook did not do its work; the message says how."""


async def run_hook(name: str, argv: list[str], env: Mapping[str, str], folder: Path, write: Callable[[bytes], None]) -> None:
    """Run it to its end. Raises HookFailed. Cancelled, it kills the hook and what the hook started."""
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
    """Follow the running hook. Raises HookFailed. Unless it is done, it has been killed."""
    going = asyncio.create_task(_say_that_it_goes_on(control, fence))
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


async def _say_that_it_goes_on(control: Control, fence: int) -> None:
    """Ends when the claim is no longer ours."""
    while await control.progress(fence):  # noqa: ASYNC110 - there is nobody to wait for: time itself is told
        await asyncio.sleep(PROGRESS_SECONDS)
