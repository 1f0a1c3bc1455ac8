"""Keep the worker's last output, and send it to the server, so that it can be read when the worker is gone."""

import asyncio
from collections import deque

from .control import Control
from .messages import Assignment
from .tail import Tail

LOG_LIMIT = 64 * 1024  # characters, as much as the server keeps per worker
SEND_SECONDS = 10.0  # between two reports, and before the first one, so that a hand-over does not wait for a report
LAST_SECONDS = 2.0  # to send the last report; the worker is ending, and must not stay because of it
HIDDEN_VALUES = 1000  # secrets that are remembered; a session's processes may print those of earlier claims


class LastWords:
    """Everything that the served process, the hooks and the agent write."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._tail = Tail(LOG_LIMIT)
        self._secrets: deque[str] = deque(maxlen=HIDDEN_VALUES)
        self._changed = asyncio.Event()

    def write(self, data: bytes) -> None:
        self._tail.write(data)
        self._changed.set()

    def hide(self, assignment: Assignment) -> None:
        """Removes the values of this claim from everything that is sent from now on."""
        self._secrets.extend(value for value in assignment.hidden if value and value not in self._secrets)

    def shown(self, tail: Tail) -> str:
        """Returns the text of another tail without the secrets of the claims."""
        return tail.text(self._secrets)

    async def keep_sending(self) -> None:
        """Sends the log some time after it changed, again and again. A report that fails is replaced by the next one."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(SEND_SECONDS)
            await self._send()

    async def send_last(self) -> None:
        """Sends what was not sent yet, because the agent exits now."""
        if self._changed.is_set():
            try:
                async with asyncio.timeout(LAST_SECONDS):
                    await self._send()
            except TimeoutError:
                pass

    async def _send(self) -> None:
        self._changed.clear()
        if not await self._control.log(self.shown(self._tail)):
            self._changed.set()
