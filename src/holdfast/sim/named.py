"""Seeds that once broke a promise, each named after the bug that it found. They are run forever."""

NAMED: dict[str, str] = {
    "after the database's clock jumped back an orphan stayed young": "488597796",
    "a free pod whose row was lost could neither speak nor be ended": "4@store.failover+pod.kill",
    "a claim that was adopted did not say whether its worker is protected": "8@store.failover",
    "a claim that only its pod knew was called protected": "54",
    "a claim was served meanwhile, and a worker too many was let go": "32@store.failover+network.lossy+replica.pause",
    "a claim that was lost while its caller waited was a defect": "1@store.failover",
    "a pod that could not start, and whose row was lost, stayed in quarantine": "12@store.failover+cluster.image-errors+pod.kill",
}
