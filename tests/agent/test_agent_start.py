"""A signal that arrives while an agent starts is not lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from waiting import eventually


def test_an_agent_that_is_still_being_loaded_handles_sigterm(tmp_path: Path) -> None:
    """PID 1 of a container does not get the default actions of signals. Here the signal is ignored, which has the same effect."""
    loading = tmp_path / "loading"
    (tmp_path / "msgspec.py").write_text(f"import time; open({str(loading)!r}, 'w').close(); time.sleep(60)\n")
    signal_before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a child process inherits ignored signals
    try:
        agent = subprocess.Popen([sys.executable, "-m", "holdfast.agent"], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    finally:
        signal.signal(signal.SIGTERM, signal_before)
    try:
        eventually(loading.exists, 20, "an agent that loads its parts")
        agent.terminate()
        assert agent.wait(300) == 128 + signal.SIGTERM, "not 0: that would let a job's container start"
    finally:
        agent.kill()
        agent.wait()
