"""An event loop in a thread, for servers that a test attacks with blocking sockets."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop


@contextmanager
def running() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Yields a function that runs a coroutine in the loop and returns its result. The loop is the one that replicas use."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
