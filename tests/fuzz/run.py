"""Runs batches of cases against the targets, and checks the targets after each batch."""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from .cases import case
from .targets import Target

BATCH = 64  # cases at the same time
ANSWER_SECONDS = 0.15  # how long a case waits for an answer; most arrive within a millisecond
GROWTH = 64 << 20  # bytes of memory that a target may take in addition
STATUS = re.compile(rb"(?:^|\r\n\r\n|\})HTTP/1\.[01] (\d{3})")
FIRST = 2  # batches after which the memory is measured for the first time, because caches fill


class Broken(Exception):
    """A target did not survive a batch. The text says what happened."""


def run(targets: list[Target], seed: int, seconds: float, only: int | None = None, say: Callable[[str], None] = print) -> int:
    """Sends batches until the time is over, or only one batch. Returns the number of cases. Raises Broken."""
    end = time.monotonic() + seconds
    batch = only or 0
    statuses: dict[str, dict[int, int]] = {target.name: {} for target in targets}
    while True:
        for target in targets:
            chance = Random(f"{seed}.{batch}.{target.name}")
            pieces = [case(chance, target.tokens) for _ in range(BATCH)]
            for status in asyncio.run(_send_all(target.port, pieces, chance)):
                statuses[target.name][status] = statuses[target.name].get(status, 0) + 1
            if found := _trouble(target, statuses[target.name], batch):
                raise Broken(f"{target.name}, batch {batch}: {found}\nrepeat it with: make fuzz SEED={seed} BATCH={batch}")
        batch += 1
        if only is not None or time.monotonic() > end:
            break
    for name, counted in statuses.items():
        say(f"{name}: {batch * BATCH if only is None else BATCH} cases; answers by status: {dict(sorted(counted.items()))}")
    return batch * BATCH * len(targets)


def _trouble(target: Target, statuses: dict[int, int], batch: int) -> str | None:
    if target.process.poll() is not None:
        return f"the process ended with {target.process.returncode}"
    if found := target.complaints():
        return "its log shows a defect:\n" + "\n".join(found[:5])
    if 500 in statuses:
        return "it answered 500"
    try:
        if (status := target.ordinary()) != 200:
            return f"an ordinary request got {status}"
    except OSError as error:
        return f"an ordinary request got no answer: {error}"
    if batch <= FIRST:
        target.memory_before = target.memory()
    elif (grown := target.memory() - target.memory_before) > GROWTH:
        return f"its memory grew by {grown >> 20} MB"
    return None


async def _send_all(port: int, cases: list[list[bytes]], chance: Random) -> list[int]:
    resets = [chance.random() < 0.2 for _ in cases]
    answers = await asyncio.gather(*(_send(port, pieces, reset) for pieces, reset in zip(cases, resets, strict=True)))
    return [int(status) for answer in answers for status in STATUS.findall(answer)]


async def _send(port: int, pieces: list[bytes], reset: bool) -> bytes:
    """Sends a case, and returns what came back. With `reset`, the client goes away without waiting for the answer."""
    received = b""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in pieces:
                if writer.is_closing():
                    break
                writer.write(piece)
                await asyncio.sleep(0)
            if not reset:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        while data := await reader.read(65_536):
                            received += data
        finally:
            writer.transport.abort()
    return received
