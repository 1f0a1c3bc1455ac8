"""Whole plans on a real Postgres: the benefit and cost of more warm workers, and that skipped time changes nothing."""

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from cli_results import Cli
from plan_runs import setting, trace

from holdfast.model.tenant import TenantSpec
from holdfast.plan import many
from holdfast.plan.figures import Figures
from holdfast.postgres.embedded import EmbeddedPostgres

Run = Callable[..., Future[Figures]]
# Three at the same time, a long pause, three at the same time, one alone.
BURSTS = trace((0, 20), (0.1, 20), (0.2, 25), (200, 20), (200.1, 3), (200.2, 20), (260.5, 30))
SESSION = {"mode": "session", "worker": {"serve": ["serve"]}, "claim": {"lease": "15s"}, "park": {"ttl": "20s"}}


def test_more_warm_workers_wait_less_and_cost_more(
    cli: Cli, simulated: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "server", lambda: contextlib.nullcontext(simulated))
    rows = "".join(f"{each.at},{each.seconds}\n" for each in BURSTS.arrivals)
    (tmp_path / "arrivals.csv").write_text(f"at,seconds\n{rows}")
    printed = cli("plan", "--trace", "arrivals.csv", "--warm", "1,3", "--jobs", "2", "-o", "json")
    assert printed.code == 0, printed.err
    found = json.loads(printed.out)
    one, three = found["settings"]
    assert (one["warm"], three["warm"], found["recommended"]) == (1, 3, 3)
    assert one["p95"] > 5 > 1 > three["p95"] > 0
    assert one["worker_hours"] < three["worker_hours"]
    assert one["utilisation"] > three["utilisation"] > 0
    assert one["claims"] == three["claims"] == 7
    assert found["pool"] == {"name": "plan", "mode": "job", "max": 6, "start_seconds": [5.0, 5.0]}
    assert "2 of 2 settings, 100%" in printed.err


def test_what_is_left_out_changes_nothing_and_the_same_run_gives_the_same_figures(run: Run) -> None:
    """A run of the whole time with production's periods, and a run that skips idle time, differ by some milliseconds only."""
    first, exact = run(setting(1), BURSTS), run(setting(1), BURSTS, exact=True)
    leaping, whole, again = first.result(), exact.result(), run(setting(1), BURSTS).result()
    assert leaping == again
    assert leaping.leapt > 150
    assert whole.leapt == 0
    assert whole.statements > 2 * leaping.statements
    for name in ("p50", "p95", "longest"):
        # depends on the point in its 2 s period at which `scale` was
        assert leaping.wait(name) == pytest.approx(whole.wait(name), abs=2.1)
    assert leaping.worker_hours == pytest.approx(whole.worker_hours, rel=0.02)
    assert leaping.utilisation == pytest.approx(whole.utilisation, rel=0.02)


def test_worker_hours_are_those_of_a_warm_worker_and_of_the_claims(run: Run) -> None:
    """One claim of 100 s at the end of 1000 s: one warm worker all the time, and its replacement during the claim."""
    found = run(setting(1), trace((0, 1), (900, 100))).result()
    assert found.worker_hours * 3600 == pytest.approx(1000 + 100 + 2, abs=6)
    assert found.utilisation == pytest.approx(101 / 1102, abs=0.002)


def test_a_session_is_renewed_parked_and_taken_again_by_its_tenant(run: Run) -> None:
    again = trace((0, 50, "a"), (65, 5, "a"), (66, 5, "b"), (200, 5, "b"))
    found = run(setting(0, **SESSION), again).result()
    assert found.claims == 4
    assert found.refused == 0
    assert found.most_workers == 2  # a's parked worker served a again and no other tenant; b waited for a start
    assert found.p50 > 5
    assert found.longest < 12


def test_max_is_a_limit_and_waiting_claims_are_served_in_turn(run: Run) -> None:
    claims_at_once = trace((0, 30), (0.1, 30), (0.2, 30))
    found = run(setting(1, max=1), claims_at_once).result()
    assert found.most_workers <= 2  # a worker that ends, and the next one
    assert found.longest > 60


def test_a_tenants_cap_makes_it_wait_though_workers_are_free(run: Run) -> None:
    limits = {"a": TenantSpec(max_claims=1), "b": TenantSpec()}
    found = run(setting(3, tenants=limits), trace((0, 30, "a"), (0.1, 30, "a"), (0.2, 30, "b"))).result()
    assert found.p50 < 1
    assert 25 < found.longest < 40


def test_a_pool_without_agents_is_planned_as_well(run: Run) -> None:
    bare = {"worker": {"run": ["work"], "agent": False}, "start": 3.0}
    found = run(setting(1, **bare), trace((0, 10), (0.5, 10))).result()
    assert found.p50 < 1 < found.longest < 8
