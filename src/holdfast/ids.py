"""New names. All of them are made here, so that the seed of a simulation decides them."""

import random
import secrets
from typing import Protocol

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # without i, l, o, u, because people read names aloud


class Random(Protocol):
    def choice(self, options: str) -> str: ...

    def uniform(self, low: float, high: float) -> float: ...


class Ids:
    """Makes names whose prefix shows what they name: c-…, w-…, p-…, r-…, t-…."""

    def __init__(self, source: Random | None = None) -> None:
        self._random: Random = source or random.SystemRandom()

    def new(self, prefix: str, length: int = 12) -> str:
        return f"{prefix}-" + "".join(self._random.choice(ALPHABET) for _ in range(length))

    def token(self) -> str:
        return "hf_" + secrets.token_urlsafe(32)
