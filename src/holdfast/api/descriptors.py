"""The process's limit of open files: raise it at the start, and keep a part of it for the duties (decision 0024)."""

import errno
import os
import resource

MOST_CONNECTIONS = 10_000  # 8 KB of memory each; more agents than this need another replica
RESERVED = 256  # for Postgres (16), the cluster's API (64), the probe port (64), and the files of pods


def raise_limit() -> int:
    """Raises the soft limit as far as it is of use and allowed, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + RESERVED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connections_within(limit: int) -> int:
    """Returns how many connections may be open at the same time, so that duties still find descriptors (P6)."""
    return min(MOST_CONNECTIONS, limit - min(RESERVED, limit // 2))


def used_up() -> bool:
    """Returns whether the process cannot open another file now."""
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
