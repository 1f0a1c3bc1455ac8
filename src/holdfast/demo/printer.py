"""Print a demo in aligned lines: the step, its figures, the promise that they prove, and the counter."""

import os
import time
from typing import TextIO

BOLD, DIM, GREEN, RED, PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"
MARGIN = " " * 11


class Printer:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._begun = time.monotonic()
        self._colours = out.isatty() and "NO_COLOR" not in os.environ

    def line(self, text: str = "", colour: str = "") -> None:
        print(f"{colour}{text}{PLAIN}" if colour and self._colours else text, file=self._out, flush=True)

    def step(self, number: int, text: str) -> None:
        self.line()
        self.line(f"[{time.monotonic() - self._begun:5.1f} s]  {number}  {text}", BOLD)

    def figure(self, what: str, value: str) -> None:
        self.line(f"{MARGIN}{what:<42}{value}")

    def command(self, command: str, output: str) -> None:
        """Prints a command line and its output."""
        self.line(f"{MARGIN}$ {command}")
        for each in output.splitlines():
            self.line(f"{MARGIN}  {each}")

    def proves(self, promise: str, text: str) -> None:
        self.line(f"{MARGIN}{promise:<4}{text}", DIM)

    def counter(self, lost: list[str], doubled: list[str], leaked: list[str]) -> None:
        clean = not (lost or doubled or leaked)
        self.line(f"{MARGIN}{len(lost)} lost, {len(doubled)} doubled, {len(leaked)} leaked", GREEN if clean else RED)
        for what in (*lost, *doubled, *leaked):
            self.line(f"{MARGIN}  {what}", RED)


def seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
