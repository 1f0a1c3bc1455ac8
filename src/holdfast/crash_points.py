"""Named crash points: a test ends the process between two steps, to see what the next replica makes of it."""

import os
import signal

VARIABLE = "HOLDFAST_CRASH_AT"

POINTS = (
    "claim.stored",  # the batch is durable, nobody has been told
    "handover.protected",  # the pod is protected, the store does not know
    "handover.offered",  # the store knows, the agent has not been woken
    "handover.delivered",  # the assignment is marked as told, the answer is not sent
    "handover.acknowledged",  # active, the answer is not sent
    "release.stored",  # ended, neither holder nor agent know
    "result.stored",  # a job's end is durable, the agent has not heard so
    "condemn.stored",  # retiring, the pod is not deleted
    "delete.sent",  # the pod was told to end, nothing else noted
    "bury.confirmed",  # absence is proven, the row is not closed
    "spawn.rows",  # rows are there, no pod
    "spawn.created",  # the pod is there, its UID is not noted
    "park.stored",  # the worker is parked, its agent has not reset
)


def crash_point(name: str) -> None:
    """Die here, as by SIGKILL, if the environment names this point. Costs one look-up otherwise."""
    if os.environ.get(VARIABLE) == name:
        assert name in POINTS, name
        once = os.environ.get(VARIABLE + "_ONCE")
        if once:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                return
        os.kill(os.getpid(), signal.SIGKILL)
