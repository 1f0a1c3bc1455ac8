"""`python -m holdfast.agent`."""

import os
import sys

from .main import main

code = main()
sys.stderr.flush()
# Not sys.exit: it would wait for a thread that is stuck in name resolution, and a free agent exits at once.
os._exit(code)
