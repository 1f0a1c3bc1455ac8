"""What `doctor` checks on one machine: who can read the fleet's files, and who can reach its replicas."""

from pathlib import Path

from ..ports.cluster import Finding
from .addresses import beyond_loopback
from .layout import Layout, open_to_others


def diagnose(root: Path) -> list[Finding]:
    """Returns the findings about this data directory."""
    layout = Layout(root)
    readable = sorted(path.name for path in open_to_others(root))
    reachable = beyond_loopback(layout)
    files = f"{', '.join(readable)} in {root}" if readable else ""
    addresses = f"other machines may reach {', '.join(reachable)}, and there is no TLS" if reachable else ""
    close = "restart the replicas, which closes them, and make new tokens if other people use this machine"
    proxy = "listen on 127.0.0.1, behind a proxy with TLS"
    return [
        Finding("P1", "only the fleet's user can use its files", not readable, files, close if readable else ""),
        Finding("P1", "replicas listen on loopback only", not reachable, addresses, proxy if reachable else ""),
    ]
