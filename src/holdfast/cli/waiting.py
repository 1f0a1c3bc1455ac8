"""Says why a claim waits while a command waits for its worker: the state of its pool, or which activation failed and why."""

import math
import re
import time
from typing import TYPE_CHECKING

from .connection import print_message

if TYPE_CHECKING:
    from holdfast.client import Claim, Client

FIRST_WAIT = 2.0  # seconds; a claim that gets a worker within this time prints nothing
POLL = 2.0  # seconds; the shortest pause between two activations, so that each of them is noticed
REPEAT = 10.0  # seconds between two lines about the same step of a claim, because the numbers of a busy pool change all the time
COUNTDOWN = re.compile(r"in \d+ s\b")


class WhyItWaits:
    """Prints a line when the claim enters another step, and when the reason has changed for some time."""

    def __init__(self) -> None:
        self.printed = False
        self._step: tuple[str, int] | None = None
        self._words = ""
        self._again_at = 0.0

    def __call__(self, claim: "Claim") -> None:
        if claim.state not in ("waiting", "assigned"):
            return
        step, words = (claim.state, claim.attempts), COUNTDOWN.sub("", claim.reason or "")
        same = words == self._words or not words
        if self.printed and (same or (step == self._step and time.monotonic() < self._again_at)):
            return
        self.printed, self._step, self._words = True, step, words
        self._again_at = time.monotonic() + REPEAT
        print_message(f"claim {claim.id} is {claim.state}: {claim.reason or 'no reason given yet'}")


async def worker_within(client: "Client", claim: "Claim", seconds: float) -> "Claim":
    """Waits until the claim is active or has ended, for at most this time, and prints why it waits."""
    say, end = WhyItWaits(), time.monotonic() + seconds
    while not (claim.active or claim.ended) and (left := end - time.monotonic()) > 0:
        say(claim)
        claim = await client.get_claim(claim, wait=milliseconds(min(left, POLL)), until="active")
    return claim


def milliseconds(seconds: float) -> str:
    """Returns the time as the server reads it, rounded up."""
    return f"{math.ceil(seconds * 1000)}ms"
