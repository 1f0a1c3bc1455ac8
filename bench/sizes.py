"""How large each measurement is: `FULL` for the documented figures, `TINY` for the tests of the benchmark itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    rounds: int = 3  # value and limit take turns, and the middle round is shown, so that other load hits both alike
    seconds: float = 3.0  # of one round
    limits: bool = True  # False where two checkouts are compared with each other instead
    # jobs, sessions, leases
    clients: tuple[int, ...] = (1, 16, 64)
    warm: int = 400  # free workers of the pool of jobs; one round may use up most of them
    job_seconds: float = 0.05  # what a hollow job takes
    tenants: int = 3  # per client; the reset of one tenant's worker passes while the client serves the next tenant
    limit_pools: int = 16  # a claim locks its pool, so the limit is spread over pools where claims need not wait in line
    limit_workers: int = 6_000
    holders: int = 16  # clients that renew or release
    leases: int = 192  # sessions that are renewed, then released
    # fairness
    flooders: int = 64  # connections of the tenant that floods
    flood_seconds: float = 10.0  # of one round
    # statements
    counted: int = 20
    # duties
    few: int = 1_000
    many: int = 10_000
    passes: int = 5
    # growth
    waiting: int = 100_000
    queue_tenants: int = 500
    tries: int = 300
    # kube
    kube_workers: int = 1_050
    kube_always: int = 300
    kube_nodes: int = 100
    kube_rate: int = 75  # claims/s of the open loop
    kube_seconds: float = 10.0
    kube_burst: int = 300
    # kube-scale
    scale_workers: int = 5_000
    scale_nodes: int = 250
    scale_idle: float = 30.0


FULL = Sizes()
TINY = Sizes(
    rounds=1,
    seconds=0.4,
    clients=(1, 2),
    warm=6,
    tenants=2,
    limit_pools=2,
    limit_workers=400,
    holders=2,
    leases=4,
    flooders=16,
    flood_seconds=1.5,
    counted=2,
    few=20,
    many=40,
    passes=1,
    waiting=500,
    queue_tenants=5,
    tries=3,
    kube_workers=10,
    kube_always=4,
    kube_nodes=2,
    kube_rate=10,
    kube_seconds=0.5,
    kube_burst=3,
    scale_workers=6,
    scale_nodes=2,
    scale_idle=0.5,
)
