"""Parked workers end after their TTL, even after failures, and do not count as demand (seed 003)."""

from typing import Any

from fleet_probes import ending, holder_of, release, worker
from kube_fleet import KubeFleet, Made
from pool_specs import sessions

from waiting import always, eventually

TTL = 15  # seconds; an agent's heartbeat fits in, also on a busy machine
BOUND = 10  # seconds after the TTL, from the failure table
TAKE_OVER = 15  # seconds, if the replica that should have ended it died
SLACK = 30  # seconds, because kubelets are slow on a busy machine
PARKED = """
SELECT w.parked_since, u.beat_heard > w.parked_heard AS heard_since FROM holdfast.worker w
LEFT JOIN holdfast.heartbeat u ON u.worker_id = w.id WHERE w.id = $1 AND w.state = 'parked'
"""


def test_a_parked_worker_goes_by_its_ttl_since_it_was_parked_though_its_replica_died(fleet_of: Made) -> None:
    pools = {"notebook": sessions(park={"ttl": f"{TTL}s"}), "slow": sessions(worker={"activate": ["sleep", "18"]})}
    fleet = fleet_of(pools=pools)
    fleet.warm(2, within=90)
    slow = fleet.claim("slow", tenant="acme", wait="0s")
    _not_renewed_by_polls(fleet)
    _slow_activation_is_left_alone(fleet, slow["id"])
    _ended_though_its_replica_died(fleet)


def _not_renewed_by_polls(fleet: KubeFleet) -> None:
    """The TTL counts from `parked_since`. Heartbeats, reads and a late renewal do not change it."""
    claim = park(fleet, "notebook", "acme")
    seen = list[dict[str, Any]]()

    def over() -> bool:
        seen.extend(looks := fleet.sql(PARKED, claim["worker"]))
        worker(fleet, claim["worker"])
        return not looks

    late = fleet.api("POST", f"/v1/claims/{claim['id']}/renew", {"fence": claim["fence"]})
    assert late.status == 409
    eventually(over, TTL + BOUND + SLACK, "its time is over")
    assert len({each["parked_since"] for each in seen}) == 1, "nothing moves it"
    assert any(each["heard_since"] for each in seen), "although its agent reported"
    gone = eventually(lambda: retired(fleet, claim["worker"]), 5, "the reason is stored")
    assert gone["reason"] == "parked past its TTL"
    assert gone["after"] >= TTL, "not before"
    assert gone["after"] <= TTL + BOUND + SLACK
    eventually(lambda: ending(fleet, claim["worker"]), SLACK, "and its pod gets SIGTERM")


def _slow_activation_is_left_alone(fleet: KubeFleet, claim: str) -> None:
    """The agent reports progress, so it is not treated as stuck, although it takes longer than a hand-over may stall."""
    active = fleet.see(claim, wait="60s", until="active")
    assert (active["state"], active["attempts"]) == ("active", 1), fleet.last_log()


def _ended_though_its_replica_died(fleet: KubeFleet) -> None:
    """The same replica parked the worker and should end it, and dies. Another replica ends the worker."""
    fleet.warm(1, within=90)
    dies = holder_of(fleet, "scale")
    claim = park(fleet, "notebook", "globex", replica=dies)
    fleet.kill(dies)
    gone = eventually(lambda: retired(fleet, claim["worker"]), TTL + BOUND + TAKE_OVER + SLACK, "another one ends it")
    assert gone["reason"] == "parked past its TTL"


def test_ttls_are_chosen_and_clamped_and_the_parked_have_a_floor_a_cap_and_no_demand(fleet_of: Made) -> None:
    pools = {
        "chain": sessions(warm=2, park={"ttl": "10m", "maxTTL": "20m"}, headroom={"mode": "constant", "slots": 1}),
        "few": sessions(warm=3, park={"ttl": "3s", "min": 1, "max": 2}),
    }
    fleet = fleet_of()
    body = {"metadata": {"name": "holdfast-headroom"}, "value": -10, "preemptionPolicy": "Never"}
    fleet.access.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    for name, spec in pools.items():
        assert fleet.api("PUT", f"/v1/pools/{name}", spec).status == 201
    fleet.warm(5, within=120)
    _a_floor_and_a_cap(fleet)
    _from_the_claim_its_tenant_or_the_pool(fleet)
    _the_parked_are_no_demand(fleet)


def _a_floor_and_a_cap(fleet: KubeFleet) -> None:
    held = [fleet.claim("few", tenant=f"t{n}", wait="60s") for n in range(3)]
    for claim in held:
        release(fleet, claim)
    assert len(states(fleet, "few", "parked")) == 2, "no more than park.max"
    eventually(lambda: len(states(fleet, "few", "parked")) == 1, 3 + BOUND + SLACK, "past its TTL one goes")
    always(lambda: len(states(fleet, "few", "parked")) == 1, 6, "and the other, past it too, is the floor")
    spec = sessions(warm=1, park={"ttl": "3s", "min": 0, "max": 2})
    assert fleet.api("PUT", "/v1/pools/few", spec).status == 200
    eventually(lambda: not states(fleet, "few", "parked"), BOUND + SLACK, "without a floor it goes")


def _from_the_claim_its_tenant_or_the_pool(fleet: KubeFleet) -> None:
    for tenant, ttl in (("patient", "15m"), ("greedy", "5h")):
        assert fleet.api("PUT", f"/v1/tenants/{tenant}", {"parkTTL": ttl}).status == 200
    minutes = {
        "the pool's": ttl_of(fleet, "acme"),
        "its tenant's": ttl_of(fleet, "patient"),
        "the claim's": ttl_of(fleet, "patient", parkTTL="2m"),
        "a claim's, clamped": ttl_of(fleet, "acme", parkTTL="5h"),
        "a tenant's, clamped": ttl_of(fleet, "greedy"),
    }
    assert list(minutes.values()) == [10, 15, 2, 20, 20], minutes
    none = fleet.claim("chain", tenant="greedy", parkTTL="0s", wait="60s")
    release(fleet, none)
    assert worker(fleet, none["worker"])["state"] in ("retiring", "gone"), "nothing asks for it to be kept"


def _the_parked_are_no_demand(fleet: KubeFleet) -> None:
    """Two workers stay parked for long. The pool gets no additional warm worker or placeholder for them."""
    assert len(states(fleet, "chain", "parked")) == 2
    fleet.warm(3, within=90)
    eventually(lambda: placeholders(fleet) == 1, 60, "a placeholder")

    def as_wanted() -> bool:
        assert len(states(fleet, "chain", "warm", "spawning")) == 2, states(fleet, "chain")
        assert len(states(fleet, "chain", "parked")) == 2
        return placeholders(fleet) == 1

    eventually(as_wanted, 60, "as many warm workers as the pool wants")
    passes = "SELECT success_at FROM holdfast.term WHERE duty = 'scale'"
    before = fleet.sql(passes)
    always(as_wanted, 6, "and no more of them")
    assert fleet.sql(passes) != before, "though the duty ran"


def park(fleet: KubeFleet, pool: str, tenant: str, replica: int = 0) -> dict[str, Any]:
    claim = fleet.claim(pool, tenant=tenant, wait="60s", replica=replica)
    assert claim["state"] == "active", fleet.last_log()
    release(fleet, claim, replica)
    assert worker(fleet, claim["worker"], replica)["state"] == "parked"
    return claim


def retired(fleet: KubeFleet, worker_: str) -> dict[str, Any]:
    """Returns the reason, and the seconds since it was parked; empty while it is not retired."""
    query = """
    SELECT e.reason, extract(epoch FROM e.at - p.at)::float8 AS after FROM holdfast.event e
    JOIN holdfast.event p ON p.worker_id = e.worker_id AND p.also = 'worker.parked'
    WHERE e.worker_id = $1 AND e.kind = 'worker.retiring' ORDER BY p.id DESC
    """
    return next(iter(fleet.sql(query, worker_)), {})


def ttl_of(fleet: KubeFleet, tenant: str, **asked: Any) -> float:
    """Returns the TTL in minutes of the worker that this claim leaves parked."""
    claim = fleet.claim("chain", tenant=tenant, wait="60s", **asked)
    assert claim["state"] == "active", fleet.last_log()
    release(fleet, claim)
    row = fleet.sql("SELECT state, park_ttl FROM holdfast.worker WHERE id = $1", claim["worker"])[0]
    assert row["state"] == "parked"
    eventually(lambda: worker(fleet, claim["worker"])["ready"], 30, "it is reset")
    return float(row["park_ttl"].total_seconds() / 60)


def states(fleet: KubeFleet, pool: str, *which: str) -> list[str]:
    return [each["id"] for each in fleet.workers() if each["pool"] == pool and (not which or each["state"] in which)]


def placeholders(fleet: KubeFleet) -> int:
    return len(fleet.access.ask("GET", f"{fleet.pods_path}?labelSelector=holdfast.dev/headroom%3D{fleet.install}")["items"])
