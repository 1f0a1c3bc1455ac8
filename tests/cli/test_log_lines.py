"""A replica logs one line per event, also for libraries, and a traceback only for unexpected errors."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
import structlog

from holdfast.serve import configure_logging

Result = Callable[[Callable[[], None]], list[dict[str, Any]]]


@pytest.fixture
def logged(capfd: pytest.CaptureFixture[str]) -> Iterator[Result]:
    """Yields the log of a replica."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def during(happening: Callable[[], None]) -> list[dict[str, Any]]:
        configure_logging()
        happening()
        return [json.loads(line) for line in capfd.readouterr().err.splitlines()]

    yield during
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        try:
            raise error
        except Exception:
            logging.getLogger("asyncpg.pool").warning("Failed to restore the pool connection floor; retrying", exc_info=True)

    return fail


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("secret"),
        asyncpg.CannotConnectNowError("secret"),
        TimeoutError("secret"),
        FileNotFoundError("secret"),
    ],
)
def test_that_the_store_is_away_is_one_line_without_a_traceback(logged: Result, error: Exception) -> None:
    (line,) = logged(failing(error))
    assert (line["event"], line["level"]) == ("Failed to restore the pool connection floor; retrying", "warning")
    assert (line["logger"], line["error"]) == ("asyncpg.pool", type(error).__name__)
    assert "exception" not in line
    assert "secret" not in json.dumps(line)


def test_an_unexpected_error_keeps_its_traceback_in_the_same_line(logged: Result) -> None:
    (line,) = logged(failing(KeyError("x")))
    assert "Traceback" in line["exception"]
    assert line["error"] == "KeyError"


def test_what_a_library_logs_below_warning_is_not_logged(logged: Result) -> None:
    def happening() -> None:
        logging.getLogger("asyncio").info("using selector")
        logging.getLogger("aiohttp.access").warning("Invalid %s received", "HTTP request")

    assert [line["event"] for line in logged(happening)] == ["Invalid HTTP request received"]
