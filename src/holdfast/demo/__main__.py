"""`python -m holdfast.demo`, or `make demo`."""

import argparse
import asyncio
import signal
import sys
import traceback

from .stage import Stage
from .story import Story
from .telling import Teller

INTERRUPTED = 130  # as a shell says it of Ctrl-C
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_WORD = {
    0: "Every process that was started is gone, and so are its files.",
    1: "Something went wrong: see above. Every process that was started is gone, and so are its files.",
    INTERRUPTED: "Stopped. Every process that was started is gone, and so are its files.",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo", description="A guided minute with Holdfast.")
    parser.add_argument("--calm", type=float, default=10.0, metavar="SECONDS", help="how long work flows before the first fault")
    parser.add_argument("--outage", type=float, default=10.0, metavar="SECONDS", help="how long Postgres is stopped")
    options = parser.parse_args()
    teller, stage = Teller(sys.stdout), Stage()
    code = 1
    try:
        with stage.logs_aside():
            code = asyncio.run(_play(stage, teller, options.calm, options.outage))
        if code == 1:
            for line in stage.last_words():
                teller.line(f"  log  {line}")
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it behind
        stage.clear_away()
    teller.line()
    teller.line(LAST_WORD[code])
    return code


async def _play(stage: Stage, teller: Teller, calm: float, outage: float) -> int:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    story = Story(stage, teller, calm, outage)
    try:
        return 0 if await story.play() else 1
    except asyncio.CancelledError:
        task.uncancel()
        return INTERRUPTED
    except Exception as error:
        teller.line(f"\nThe demo failed: {error or type(error).__name__}")
        traceback.print_exc()  # into the log, whose end is shown
        return 1
    finally:
        for number in SIGNALS:
            loop.add_signal_handler(number, lambda: None)
        await story.close()


if __name__ == "__main__":
    sys.exit(main())
