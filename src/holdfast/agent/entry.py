"""Start an agent with the settings of its environment."""

import asyncio
import os
import sys

from .config import BadConfig, from_environment
from .log import set_worker
from .main import Agent


def main() -> int:
    """Returns the exit code: 0 done, 1 failed, 2 wrong settings; or the code of the served process if it died during a claim."""
    try:
        config = from_environment(os.environ)
    except BadConfig as error:
        print(f"holdfast agent: {error}", file=sys.stderr)
        return 2
    set_worker(config.worker)

    async def life() -> int:
        return await Agent(config).run()

    # asyncio.run would wait for threads that are stuck in name resolution.
    return asyncio.new_event_loop().run_until_complete(life())
