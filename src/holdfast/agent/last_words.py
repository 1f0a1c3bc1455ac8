"""Keep the worker's last output, and send it to the server, so that it can be read when the worker is gone."""

import asyncio
from collections import deque

from .control import Control
from .messages import Assignment
from .tail import Tail

LOG_LIMIT = 64 * 1024  # characters, as much as the server keeps per worker
SEND_SECONDS = 10.0  # between two reports, and before the first one, so that a hand-over does not wait for a report
# Characters per second. Each report replaces the stored log, so a worker that writes all the time would otherwise make the
# database write 64 KB every 10 s (decision 0027). A log of 5 KB is still sent every 10 s, one of 64 KB every 128 s.
SEND_PACE = 512
LAST_SECONDS = 2.0  # to send the last report after a failure; the worker is ending, and must not stay because of it
CLEAN_SECONDS = 0.5  # to send it before a clean exit, as long as a free agent takes to report that it drains
HIDDEN_VALUES = 1000  # secrets that are remembered; a session's processes may print those of earlier claims


class LastWords:
    """Everything that the served process, the hooks and the agent write."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._tail = Tail(LOG_LIMIT)
        self._secrets: deque[str] = deque(maxlen=HIDDEN_VALUES)
        self._changed = asyncio.Event()
        self._output = False  # whether a process has written something that was not sent
        self._next_at = 0.0  # when the next report may be sent, by the event loop's clock

    def write(self, data: bytes) -> None:
        """Adds what the served process or a hook wrote."""
        self._output = True
        self.note(data)

    def note(self, data: bytes) -> None:
        """Adds a line of the agent itself."""
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
            await asyncio.sleep(max(SEND_SECONDS, self._next_at - asyncio.get_running_loop().time()))
            await self._send()

    async def send_last(self, *, clean: bool) -> None:
        """Sends what was not sent yet, because the agent exits now. Before a clean exit the agent's own lines alone are not worth
        a report, because every job ends in this way."""
        if self._output if clean else self._changed.is_set():
            try:
                async with asyncio.timeout(CLEAN_SECONDS if clean else LAST_SECONDS):
                    await self._send()
            except TimeoutError:
                pass

    async def _send(self) -> None:
        self._changed.clear()
        self._output, had_output = False, self._output
        text = self.shown(self._tail)
        self._next_at = asyncio.get_running_loop().time() + len(text) / SEND_PACE
        if not await self._control.log(text):
            self._changed.set()
            self._output = self._output or had_output
