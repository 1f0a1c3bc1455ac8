"""Named crash points: a test kills the process between two steps, to check what the next replica does."""

import os
import signal

VARIABLE = "HOLDFAST_CRASH_AT"

POINTS = (
    "claim.stored",  # the batch is stored, no request has been answered
    "handover.protected",  # the pod is protected, the store does not know it
    "handover.offered",  # the offer is stored, no poll at this replica has been answered
    "handover.delivered",  # the delivery is stored, the assignment has not been sent
    "handover.acknowledged",  # the claim is active, the answer has not been sent
    "release.stored",  # the claim has ended, neither holder nor agent knows it
    "result.stored",  # a job's end is stored, its agent has not been answered
    "condemn.stored",  # the worker is retiring, its pod is not deleted
    "delete.sent",  # the deletion was sent, nothing else is stored
    "bury.confirmed",  # the pod's absence is proven, the row is not closed
    "spawn.rows",  # the rows are stored, there are no pods
    "spawn.created",  # the pods exist, their UIDs are not stored
    "park.stored",  # the worker is parked, its agent has not reset it
)


def crash_point(name: str) -> None:
    """Kills the process with SIGKILL if the environment names this point. Otherwise it costs one look-up."""
    if os.environ.get(VARIABLE) == name:
        assert name in POINTS, name
        once = os.environ.get(VARIABLE + "_ONCE")
        if once:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                return
        os.kill(os.getpid(), signal.SIGKILL)
