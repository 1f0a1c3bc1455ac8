"""A part of the benchmark: where it runs, what it measures, and the names of its figures."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .figure import Figure
from .sizes import Sizes


@dataclass(frozen=True)
class Part:
    name: str
    stage: Callable[[Sizes], AbstractContextManager[Any]]
    figures: Callable[[Any, Sizes], AsyncIterator[Figure]]
    names: Callable[[Sizes], list[str]]  # of its figures, in order; known without a run, so that a test can check the table

    def run(self, sizes: Sizes, show: Callable[[Figure], None]) -> list[Figure]:
        with self.stage(sizes) as here:
            return self.run_on(here, sizes, show)

    def run_on(self, here: Any, sizes: Sizes, show: Callable[[Figure], None]) -> list[Figure]:
        async def collect() -> list[Figure]:
            found = []
            async for figure in self.figures(here, sizes):
                show(figure)
                found.append(figure)
            return found

        return asyncio.run(collect())
