"""Check ports of this machine: whether a port is free, and whether a replica of ours still uses it."""

import os
import socket
from itertools import pairwise
from pathlib import Path

import psutil


class PortTaken(Exception):
    """A port cannot be used. The message names the port and the reason."""


def check_free(host: str, port: int) -> None:
    """Raises PortTaken unless a server can listen on this port now. It listens for a moment itself, because that fails for every
    other listener, whatever it speaks. The option SO_REUSEADDR is the one that the replica's server uses."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise PortTaken(f"--host {host}: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                trial.bind(address)
                trial.listen(1)
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else str(error)
                raise PortTaken(f"port {port} on {host} cannot be used ({why}); free it, or choose another with --port") from None


def replica_left_over(root: Path, port: int) -> bool:
    """Returns whether a replica of this data directory runs on the port. It belongs to an `up` that was killed, because the
    caller has the lock of the directory, and it ends within seconds."""
    wanted = {("--data-dir", str(root)), ("--port", str(port))}
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if "serve" in arguments and wanted <= set(pairwise(arguments)):
            return True
    return False
