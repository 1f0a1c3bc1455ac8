"""All metrics of a replica. docs/metrics.md is generated from this file."""

from collections.abc import Iterator, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from .model.claim import Claim, How

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)


class StoredTotal(Collector):
    """A counter that is kept in the database. Every replica exports the same value, and a restart does not reset it."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self.name, self.documentation, self.labels = name, documentation, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def set(self, value: float, *labels: str) -> None:
        assert len(labels) == len(self.labels)
        self._values[labels] = value

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Metrics:
    """One registry per replica. Gauges and stored totals are read from the database, so all replicas show the same; counters and
    histograms belong to this replica."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        # From the database
        self.workers = Gauge("holdfast_workers", "Workers by pool and state.", ["pool", "state"], registry=r)
        self.suspects = Gauge(
            "holdfast_workers_suspect",
            "Workers that are suspect: silent for too long, or with a report that contradicts the row.",
            ["pool"],
            registry=r,
        )
        self.unconfirmed = Gauge(
            "holdfast_workers_unconfirmed",
            "Workers that have not reported since the database lost commits.",
            ["pool"],
            registry=r,
        )
        self.claims = Gauge("holdfast_claims", "Claims that have not ended, by pool and state.", ["pool", "state"], registry=r)
        self.oldest = Gauge("holdfast_oldest_waiting_seconds", "Age of the oldest waiting claim.", ["pool"], registry=r)
        self.starved = Gauge("holdfast_pool_starved", "1 if claims wait although workers are free.", ["pool"], registry=r)
        self.saturated = Gauge("holdfast_pool_saturated", "1 if claims wait and no worker is free.", ["pool"], registry=r)
        self.frozen = Gauge("holdfast_pool_frozen", "1 if the pool is frozen.", ["pool"], registry=r)
        self.duty_success = Gauge(
            "holdfast_duty_last_success_timestamp_seconds",
            "When each duty last succeeded.",
            ["duty"],
            registry=r,
        )
        self.duty_seconds = Gauge(
            "holdfast_duty_last_duration_seconds", "How long the duty's last pass took.", ["duty"], registry=r
        )
        self.duty_actions = StoredTotal("holdfast_duty_actions", "Actions that took effect, in all passes.", ["duty"], registry=r)
        self.duty_skips = StoredTotal(
            "holdfast_duty_skips",
            "Passes that could not read, and skipped actions: frozen, braked, recovering, unsure.",
            ["duty"],
            registry=r,
        )
        self.term = Gauge(
            "holdfast_duty_term_number",
            "The number of the duty's term; it grows with each take-over.",
            ["duty"],
            registry=r,
        )
        self.takeovers = StoredTotal("holdfast_duty_takeovers", "Terms taken from another replica.", ["duty"], registry=r)
        self.duty_held = Gauge("holdfast_duty_term_held", "1 if a replica holds the duty's term.", ["duty"], registry=r)
        self.brake = Gauge("holdfast_brake_tripped", "1 if the brake is tripped; an operator must release it.", registry=r)
        self.tenant_brake = Gauge(
            "holdfast_tenant_brake_tripped",
            "1 if the brake of this tenant is tripped; an operator must release it.",
            ["tenant"],
            registry=r,
        )
        self.recovering = Gauge("holdfast_recovering", "1 during recovery after lost commits.", registry=r)
        self.recoveries = StoredTotal("holdfast_recoveries", "How often the database was found to have lost commits.", registry=r)
        self.epoch = Gauge("holdfast_epoch", "The database's epoch.", registry=r)
        self.replicas = Gauge("holdfast_replicas", "Replicas by state.", ["state"], registry=r)
        # This replica's own
        self.ended = Counter("holdfast_claims_ended", "Claims ended, by outcome.", ["pool", "outcome"], registry=r)
        self.ends = Counter("holdfast_claim_ends", "Claims ended, by P2's closed list of ways.", ["how"], registry=r)
        self.wait = Histogram(
            "holdfast_claim_wait_seconds",
            "From request to assignment.",
            ["pool"],
            buckets=SECONDS,
            registry=r,
        )
        self.handover = Histogram(
            "holdfast_claim_handover_seconds",
            "From assignment to active.",
            ["pool"],
            buckets=SECONDS,
            registry=r,
        )
        self.hold = Histogram("holdfast_claim_hold_seconds", "From active to ended.", ["pool"], buckets=SECONDS, registry=r)
        self.match = Histogram("holdfast_match_seconds", "Duration of one batch of one pool.", buckets=SECONDS, registry=r)
        self.batch = Histogram(
            "holdfast_match_batch_size",
            "Requests per batch.",
            buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=r,
        )
        self.actions = Counter("holdfast_actions", "Actions applied, by kind and outcome.", ["action", "outcome"], registry=r)
        self.spawn_failures = Counter(
            "holdfast_spawn_failures", "Pods that were refused or never became ready, by kind of reason.", ["reason"], registry=r
        )
        self.unprotected = Counter(
            "holdfast_handover_unprotected", "Claims handed over without protection.", ["pool"], registry=r
        )
        self.activations_failed = Counter(
            "holdfast_activations_failed", "Activations that failed: the hook failed, hung or died.", ["pool"], registry=r
        )
        self.protect_errors = Counter("holdfast_protect_errors", "Failed tries to protect a pod.", registry=r)
        self.quarantined = Counter("holdfast_quarantined", "Pods that are not understood and therefore not touched.", registry=r)
        self.store_errors = Counter("holdfast_store_errors", "Calls that could not reach the store.", registry=r)
        self.cluster_errors = Counter("holdfast_cluster_errors", "Passes and beats that could not reach the cluster.", registry=r)
        self.requests = Counter("holdfast_http_requests", "Requests by route and status.", ["route", "status"], registry=r)
        self.connections = Gauge(
            "holdfast_http_connections",
            "Open connections, by whether a request on them had a valid token.",
            ["authenticated"],
            registry=r,
        )
        self.connections_dropped = Counter(
            "holdfast_http_connections_dropped",
            "Connections that were closed because of their client, or because there was no room: "
            "address, full, tenant, memory, descriptors, slow, unread, malformed.",
            ["reason"],
            registry=r,
        )
        self.disconnects = Counter(
            "holdfast_http_disconnects", "Requests whose client went away before it had sent the whole request.", registry=r
        )
        # Create these series at the start, so that the first event of a kind shows as an increase and not as a new series.
        for how in get_args(How):
            self.ends.labels(how)
        for reason in ("address", "full", "tenant", "memory", "descriptors", "slow", "unread", "malformed"):
            self.connections_dropped.labels(reason)
        for known in ("true", "false"):
            self.connections.labels(known)
        for kind in ("quota", "limit", "webhook", "invalid", "image", "unschedulable", "other", "never-ready"):
            self.spawn_failures.labels(kind)

    def claim_active(self, claim: Claim) -> None:
        """Counts a claim that has just become active."""
        assert claim.assigned_at is not None
        assert claim.active_at is not None
        assert claim.waited is not None
        self.wait.labels(claim.pool).observe(claim.waited)
        self.handover.labels(claim.pool).observe(max(0.0, claim.active_at - claim.assigned_at))

    def claim_ended(self, claim: Claim, how: str) -> None:
        """Counts a claim that has just ended, by one of P2's ways."""
        assert claim.outcome is not None
        self.ends.labels(how).inc()
        self.ended.labels(claim.pool, claim.outcome).inc()
        if claim.active_at is not None and claim.ended_at is not None:
            self.hold.labels(claim.pool).observe(max(0.0, claim.ended_at - claim.active_at))
