"""Bugs that the simulation found: the faults that each needs, and their moments. Every `make sim` runs seeds with them."""

NAMED: dict[str, str] = {
    "after the database's clock jumped back an orphan stayed young": "pod.impostor@worker.warm+store.clock-jump=0@pod.impostor",
    "a free pod whose row was lost could neither speak nor be ended": "store.failover@claim.assigned..pod.created",
    "a claim that was adopted did not say whether its worker is protected": "store.failover@claim.assigned",
    "a claim that only its pod knew was called protected": (
        "store.failover@claim.ended..claim.active+cluster.down@store.failover..claim.active"
    ),
    "a claim that was lost while its caller waited was a defect": "store.failover=0@claim.ended..pod.protected",
    "a pod that could not start, and whose row was lost, stayed in quarantine": (
        "store.failover@claim.assigned..pod.created+cluster.image-errors=1@store.failover"
    ),
}
SEEDS = (1, 2)  # per bug
