"""Run a demo, and leave no process or file behind, also after Ctrl-C at any moment."""

import asyncio
import signal
import traceback
from collections.abc import Callable
from typing import Protocol

from .printer import Printer
from .stage import Stage

INTERRUPTED = 130  # the exit code of a shell after Ctrl-C
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_WORD = {
    0: "Every process that was started is gone, and so are its files.",
    1: "Something went wrong: see above. Every process that was started is gone, and so are its files.",
    INTERRUPTED: "Stopped. Every process that was started is gone, and so are its files.",
}


class Runnable(Protocol):
    async def play(self) -> bool:
        """Runs the demo. Returns whether nothing was lost, doubled or leaked."""

    async def close(self) -> None:
        """Stops everything that the demo started, at any point of it."""


def run(stage: Stage, printer: Printer, story: Callable[[], Runnable]) -> int:
    """Runs the demo and returns the exit code. `story` is called on the event loop."""
    code = 1
    try:
        with stage.redirect_logs():
            code = asyncio.run(_play(story, printer))
        if code == 1:
            for line in stage.last_log_lines():
                printer.line(f"  log  {line}")
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the cleanup
        stage.clean_up()
    printer.line()
    printer.line(LAST_WORD[code])
    return code


async def _play(make: Callable[[], Runnable], printer: Printer) -> int:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    story = make()
    try:
        return 0 if await story.play() else 1
    except asyncio.CancelledError:
        task.uncancel()
        return INTERRUPTED
    except Exception as error:
        printer.line(f"\nThe demo failed: {error or type(error).__name__}")
        traceback.print_exc()  # into the log; its last lines are printed
        return 1
    finally:
        for number in SIGNALS:
            loop.add_signal_handler(number, lambda: None)
        await story.close()
