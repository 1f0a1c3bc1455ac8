"""End a pod: signal its shim, or its orphans if the shim was killed; kill the processes that are left after the grace."""

import signal
import time

from .folder import Exit, Folder, PodFiles, Termination
from .process import BOOT, NO_SHIM, Table, alive, send

HUNG = 5.0  # seconds after the deadline; a shim that still lives then is assumed to be stopped by a signal
KILL_ROUNDS = 100  # 10 ms apart; several are needed, because a killed process may have forked just before


def end(folder: Folder, facts: PodFiles, grace: float) -> float | None:
    """Makes the pod end. The lock must be held.

    Returns the seconds after which the caller has to call again, or None if the shim does the rest or nothing is left to do.
    """
    if facts.exit is not None or facts.order.boot != BOOT:
        return None
    termination = _store_termination(folder, facts, grace)
    if facts.shim is None and not folder.write_once("pod.json", NO_SHIM):
        facts = folder.facts()[0]  # a shim wrote its file first
    if facts.shim is None or facts.shim == NO_SHIM:  # a shim that starts later finds this entry and exits
        folder.write_once("exit.json", Exit(None, None, time.time()))
        return None
    overdue = time.time() - termination.until
    if alive(facts.shim):
        if overdue > HUNG:
            _kill_all(folder, facts)
        else:
            send(facts.shim, signal.SIGTERM)
        return None
    if overdue >= 0:
        _kill_all(folder, facts)
        return None
    orphans = folder.kin(facts, Table())
    if facts.agent is None or not send(facts.agent, signal.SIGTERM):
        for process in orphans.sure:
            send(process, signal.SIGTERM)
    return -overdue if orphans else None


def _store_termination(folder: Folder, facts: PodFiles, grace: float) -> Termination:
    """Stores the deadline. The earlier deadline wins, so that a repeated call does not extend it."""
    termination = Termination(time.time(), grace)
    if facts.termination is not None and facts.termination.until <= termination.until:
        return facts.termination
    folder.write("terminating", termination)
    return termination


def _kill_all(folder: Folder, facts: PodFiles) -> None:
    for _ in range(KILL_ROUNDS):
        left = folder.kin(facts, Table())
        if not left.sure:
            return
        for process in left.sure:
            send(process, signal.SIGKILL)
        time.sleep(0.01)
