"""Limit the connections of clients, so that clients without the credential cannot lock the holder out."""

import asyncio
from collections.abc import Callable

MOST_CONNECTIONS = 480  # 2 descriptors each, below the usual limit of 1024
MOST_UNPROVEN = 320  # connections that have not shown the credential
# A connection's first bytes are read one turn of the event loop after it was accepted, and a turn accepts up to 100 connections.
# With fewer than that per address, a burst would cut the holder's connection before its request is read.
MOST_PER_ADDRESS = 200


class Connections:
    """The open connections of clients. `cut` ends one of them."""

    def __init__(self, cut: Callable[[asyncio.StreamWriter], None]) -> None:
        self._cut = cut
        self._unproven: dict[asyncio.StreamWriter, str] = {}  # with the client's address, the oldest first
        self._proven: set[asyncio.StreamWriter] = set()

    def __len__(self) -> int:
        return len(self._unproven) + len(self._proven)

    def admit(self, writer: asyncio.StreamWriter) -> bool:
        """Adds a new connection. If there are too many, cuts the oldest one that has not shown the credential. Returns False if
        there is no such connection, so that the new one has to go."""
        address = str((writer.get_extra_info("peername") or ("",))[0])
        same = [each for each, its in self._unproven.items() if its == address]
        if len(same) >= MOST_PER_ADDRESS:
            self._drop(same[0])
        elif len(self._unproven) >= MOST_UNPROVEN or len(self) >= MOST_CONNECTIONS:
            if not self._unproven:
                return False
            self._drop(next(iter(self._unproven)))
        self._unproven[writer] = address
        return True

    def prove(self, writer: asyncio.StreamWriter) -> None:
        """Stores that the connection has shown the credential. From now on it is not cut for other connections."""
        if self._unproven.pop(writer, None) is not None:
            self._proven.add(writer)

    def is_proven(self, writer: asyncio.StreamWriter) -> bool:
        return writer in self._proven

    def forget(self, writer: asyncio.StreamWriter) -> None:
        self._unproven.pop(writer, None)
        self._proven.discard(writer)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self.forget(writer)
        self._cut(writer)
