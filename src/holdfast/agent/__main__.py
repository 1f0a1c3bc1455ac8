"""`python -m holdfast.agent`."""

import os
import signal
import sys

# Before everything else is even read: the first process of a container does not hear a signal that it has no handler for, and
# would leave only by force, at the end of its grace. Nothing has begun yet; and not with 0: that lets a job's container start.
signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

from .main import main  # noqa: E402

code = main()
sys.stderr.flush()
# Not sys.exit: it would wait for a thread that is stuck in name resolution, and a free agent exits at once.
os._exit(code)
