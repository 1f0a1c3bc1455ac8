"""Bugs that the simulation found in the past, put back. The faults and moments of sim/named.py must still find each of them."""

from mutants import FN, MUTANTS, Change, Mutant

from holdfast.sim.named import NAMED


def past(name: str, *changes: Change) -> Mutant:
    return Mutant(name, NAMED[name], changes)


PAST = (
    past(
        "after the database's clock jumped back an orphan stayed young",
        Change(
            "duties/cases.py",
            "    age = max(observed.now - pod.created_at, observed.strange.get(pod.name, 0.0))\n",
            "    age = observed.now - pod.created_at\n",
        ),
    ),
    past(
        "a free pod whose row was lost could neither speak nor be ended",
        *next(mutant.changes for mutant in MUTANTS if mutant.name == "the agent of a pod whose row was lost cannot speak"),
    ),
    past(
        "a claim that was adopted did not say whether its worker is protected",
        Change(
            f"{FN}/recovery.sql",
            "            protected = coalesce(protected, false)\n",
            "            protected = protected\n",
        ),
    ),
    past(
        "a claim that only its pod knew was called protected",
        Change(f"{FN}/recovery.sql", "true, true, false,  -- what its holder", "true, true, true,  -- what its holder"),
    ),
    past(
        "a claim that was lost while its caller waited was a defect",
        Change(
            "api/claims.py",
            '        raise Problem(503, "unavailable", lost, headers={"Retry-After": "2"})\n',
            "        raise AssertionError\n",
        ),
    ),
    past(
        "a pod that could not start, and whose row was lost, stayed in quarantine",
        Change(
            "duties/cases.py",
            '    began = pod.phase != "pending" or heartbeat is not None or pod.protected\n',
            "    began = True\n",
        ),
    ),
)
