"""`apply` stores all objects of all files or none of them, and `--dry-run` and `diff` show what it would do. On the real API."""

import io
from pathlib import Path
from typing import Any

import pytest
from cli_results import Cli

from served_api import Stage

EXAMPLES = Path(__file__).parents[2] / "examples"


def pool(name: str, spec: str) -> str:
    return f"apiVersion: holdfast.dev/v1alpha1\nkind: WorkerPool\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n"


def tenant(name: str, spec: str) -> str:
    return pool(name, spec).replace("WorkerPool", "Tenant")


GOOD = pool("good", "warm: 1")
UNSERVED = pool("unserved", "mode: session\n  worker: {port: 80}")  # only the server knows that a session here needs `serve`


def stored(stage: Stage) -> dict[str, Any]:
    pools = {each["name"]: each["spec"] for each in stage.ask("GET", "/v1/pools").json["items"]}
    return pools | {each["name"]: each["spec"] for each in stage.ask("GET", "/v1/tenants").json["items"]}


def test_a_file_whose_last_pool_the_server_refuses_changes_nothing(real_cli: Cli, stage: Stage, tmp_path: Path) -> None:
    before = stored(stage)
    (tmp_path / "two.yaml").write_text(f"{GOOD}---\n{UNSERVED}")
    result = real_cli("apply", "-f", "two.yaml")
    assert result.code == 1
    assert stored(stage) == before, "half of the file was applied"
    assert "two.yaml:12: WorkerPool unserved: spec.worker.serve: a session on this machine needs a command" in result.err


def test_the_server_refuses_objects_of_several_files_with_the_place_of_each(real_cli: Cli, stage: Stage, tmp_path: Path) -> None:
    before = stored(stage)
    (tmp_path / "a.yaml").write_text(UNSERVED)
    (tmp_path / "b.yaml").write_text(f"{GOOD}---\n{pool('direct', 'mode: session')}")  # a job pool of this name exists
    result = real_cli("apply", "-f", "a.yaml", "-f", "b.yaml")
    assert (result.code, stored(stage)) == (1, before)
    assert "a.yaml:6: WorkerPool unserved: spec.worker.serve: " in result.err
    assert "b.yaml:11: WorkerPool direct: spec.mode: pool 'direct' is a job pool; delete it first" in result.err


def test_files_a_folder_and_standard_input_are_applied_together(
    real_cli: Cli, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "one.yaml").write_text(pool("one", "warm: 0"))
    (folder / "two.yml").write_text(tenant("two", "maxClaims: 2"))
    (folder / "notes.txt").write_text("not a manifest")
    (tmp_path / "good.yaml").write_text(GOOD)
    monkeypatch.setattr("sys.stdin", io.StringIO(tenant("three", "weight: 3")))
    result = real_cli("apply", "-f", "good.yaml", "-f", "folder", "-f", "-")
    assert result.out.splitlines() == [
        "WorkerPool good created",
        "WorkerPool one created",
        "Tenant two created",
        "Tenant three created",
    ], result.err
    assert stored(stage)["two"]["maxClaims"] == 2
    kinds = [
        (event["kind"], event["pool"] or event["tenant"]) for event in stage.ask("GET", "/v1/events?newest=true").json["items"]
    ]
    made = {("pool.created", "good"), ("pool.created", "one"), ("tenant.created", "two"), ("tenant.created", "three")}
    assert made <= set(kinds)


def test_created_then_unchanged_then_configured(real_cli: Cli, stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    both = GOOD.replace("warm: 1", "warm: 1\n  protection: {mode: off}") + "---\n" + tenant("acme", "weight: 3")
    file.write_text(both)
    assert real_cli("apply", "-f", str(file)).out == "WorkerPool good created\nTenant acme created\n"
    assert real_cli("apply", "-f", str(file)).out == "WorkerPool good unchanged\nTenant acme unchanged\n"
    file.write_text(both.replace("warm: 1", "warm: 2").replace("weight: 3", "weight: 4"))
    assert real_cli("apply", "-f", str(file)).out == "WorkerPool good configured\nTenant acme configured\n"
    assert stored(stage)["good"]["protection"]["mode"] == "off"  # the string, not false
    kinds = [event["kind"] for event in stage.ask("GET", "/v1/events?newest=true&limit=4").json["items"]]
    assert kinds == ["pool.created", "tenant.created", "pool.changed", "tenant.changed"]


def test_the_examples_apply(real_cli: Cli, stage: Stage) -> None:
    result = real_cli("apply", "-f", str(EXAMPLES))
    assert result.code == 0, result.err
    assert {"linux", "notebook", "acme"} <= set(stored(stage))


def test_a_dry_run_shows_what_would_change_and_changes_nothing(real_cli: Cli, stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    real_cli("apply", "-f", "good.yaml")
    rows, before = stage.rows(), stored(stage)
    changed = GOOD.replace("warm: 1", "warm: 2\n  claim: {maxDuration: 1h}")
    (tmp_path / "more.yaml").write_text(f"{changed}---\n{pool('new', 'warm: 0')}---\n{tenant('acme', 'weight: 2')}")
    result = real_cli("apply", "--dry-run", "-f", "more.yaml")
    assert result.out.splitlines() == [
        "WorkerPool good configured (dry run)",
        "  warm: 1 → 2",
        '  claim.maxDuration: null → "1h"',
        "WorkerPool new created (dry run)",
        "Tenant acme created (dry run)",
    ], result.err
    (tmp_path / "bad.yaml").write_text(UNSERVED)
    refused = real_cli("apply", "--dry-run", "-f", "bad.yaml")
    assert (refused.code, "bad.yaml:6: WorkerPool unserved: spec.worker.serve" in refused.err) == (1, True)
    assert (stage.rows(), stored(stage)) == (rows, before)


def test_diff_shows_a_unified_diff_per_object_and_exits_like_diff(real_cli: Cli, stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(f"{GOOD}---\n{tenant('acme', 'weight: 2')}")
    created = real_cli("diff", "-f", "good.yaml")
    assert created.code == 1, created.err
    assert created.out.startswith("--- /dev/null\n+++ WorkerPool good (good.yaml)\n")
    real_cli("apply", "-f", "good.yaml")
    same = real_cli("diff", "-f", "good.yaml")
    assert (same.code, same.out) == (0, "")
    (tmp_path / "good.yaml").write_text(f"{pool('good', 'max: 5')}---\n{tenant('acme', 'weight: 2')}")
    rows = stage.rows()
    changed = real_cli("diff", "-f", "good.yaml")
    assert (changed.code, stage.rows()) == (1, rows)
    assert changed.out.startswith("--- WorkerPool good (stored)\n+++ WorkerPool good (good.yaml)\n")
    assert [line for line in changed.out.splitlines()[2:] if line[0] in "+-"] == ["-  max: 10", "+  max: 5"]
    (tmp_path / "good.yaml").write_text(UNSERVED)
    wrong = real_cli("diff", "-f", "good.yaml")
    assert (wrong.code, wrong.out, "good.yaml:6: WorkerPool unserved" in wrong.err) == (2, "", True)


def test_an_operator_cannot_set_tenants_and_nothing_is_stored(
    real_cli: Cli, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "operator")
    before = stored(stage)
    (tmp_path / "both.yaml").write_text(f"{GOOD}---\n{tenant('acme', 'weight: 2')}")
    result = real_cli("apply", "-f", "both.yaml")
    assert (result.code, stored(stage)) == (1, before)
    assert "both.yaml:8: Tenant acme: kind: only an admin may set tenants" in result.err
    (tmp_path / "both.yaml").write_text(GOOD)
    assert real_cli("apply", "-f", "both.yaml").out == "WorkerPool good created\n"
