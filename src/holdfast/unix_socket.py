"""Addresses of the form unix:///path, which lead to a socket in a folder that only its owner can enter."""

import os
import stat
from pathlib import Path
from urllib.parse import quote, unquote

SCHEME = "unix://"
PATH_MAX = 103  # bytes, the limit of macOS; Linux allows 107


class NotPrivate(OSError):
    """Other users may be able to put a socket into this folder, so the process that listens there may be anybody's."""


def to_url(path: Path) -> str:
    """Returns the address of a socket. Blanks and commas are escaped, because lists of addresses are split at both."""
    return SCHEME + quote(str(path))


def to_path(url: str) -> Path | None:
    """Returns the socket's path, or None if the address is not that of a socket on this machine."""
    if not url.startswith(f"{SCHEME}/") or "?" in url or "#" in url:
        return None
    path = unquote(url.removeprefix(SCHEME))
    return Path(path) if "\0" not in path and len(os.fsencode(path)) <= PATH_MAX else None


def check_private(folder: Path) -> None:
    """Raises NotPrivate unless the folder belongs to this user or to root and no other user can enter it. A client checks this
    before each connection, because another user could put a socket of its own into any other folder."""
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise NotPrivate(f"{folder} belongs to uid {found.st_uid}, so the process that listens there is not trusted")
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise NotPrivate(f"{folder} must be a folder with mode 0700, because other users could listen there")
