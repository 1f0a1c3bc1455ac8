"""Entry point of `python -m holdfast.agent`."""

import os
import signal
import sys

# Installed before the other imports, because the first process of a container ignores a signal that it has no handler for. It
# would then run until it is killed at the end of its grace. The exit code is not 0, because 0 would start a job's container.
signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

from .entry import main  # noqa: E402

code = main()
sys.stderr.flush()
# sys.exit would wait for a thread that is stuck in name resolution, and a free agent must exit at once.
os._exit(code)
