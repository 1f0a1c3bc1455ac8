"""Check whether served processes are reachable through their agents only, and whether this machine allows network namespaces."""

import functools
import subprocess
import sys
from collections.abc import Sequence

from ..agent import isolated
from ..model.pool import Pool
from ..ports.cluster import Finding

PROBE = [sys.executable, "-I", "-S", isolated.__file__, "-", "true"]
PROBE_SECONDS = 10.0
NAME = "served processes are reachable through their agents only"


@functools.cache
def no_namespaces() -> str:
    """Returns why a process cannot have a network namespace of its own here, or an empty text. It tries once."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    try:
        tried = subprocess.run(PROBE, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check failed: {error}"
    return "" if tried.returncode == 0 else tried.stderr.strip().removeprefix("holdfast: ") or "the check failed"


def served_processes(pools: Sequence[Pool]) -> Finding:
    """Fails for pools that do not set worker.listen, because every user of the machine can connect to a port."""
    sessions = [pool for pool in pools if pool.state == "live" and pool.spec.mode == "session"]
    undecided = [pool.name for pool in sessions if pool.spec.worker.listen is None]
    decided = [pool.name for pool in sessions if pool.spec.worker.listen == "port"]
    what = "every user of this machine can connect to the served processes without a credential"
    if undecided:
        advice = "let `serve` listen on the unix socket $SOCKET and set worker.listen: socket. If it can only listen on a port: "
        if reason := no_namespaces():
            advice += f"its port stays open, because isolated is not possible here ({reason}); worker.listen: port accepts that"
        else:
            advice += "worker.listen: isolated, which gives it no other network; or worker.listen: port, which accepts this"
        return Finding("P1", NAME, False, f"pools without worker.listen: {', '.join(undecided)}: {what}", advice)
    return Finding("P1", NAME, True, f"accepted by worker.listen: port in {', '.join(decided)}: {what}" if decided else "", "")
