"""`get -o yaml` prints what `apply` takes back without a change. On the real API."""

from pathlib import Path

from cli_results import Cli

from served_api import Stage

SCRIPT = 'set -e\necho "off: yes"\n# a comment\nexec python3 -m http.server --bind 127.0.0.1 "$PORT"\n'
ODD = {
    "mode": "session",
    "warm": 0,
    "worker": {
        "serve": ["sh", "-c", SCRIPT],
        "activate": ["off", "yes", "1e3", "0x1f", "2026-01-01", "null", "~", "ä: b", " x "],
    },
    "claim": {"lease": "90s", "maxDuration": "8h"},
    "park": {"maxTTL": "2h", "max": 3},
    "protection": {"mode": "off"},
    "rollout": {"maxUnavailable": 2},
    "labels": ["007", "a,b"],
}


def test_what_get_prints_as_yaml_apply_takes_back_unchanged(real_cli: Cli, stage: Stage, tmp_path: Path) -> None:
    stage.ask("DELETE", "/v1/pools/direct")  # its spec is made for these tests; the API would refuse it
    assert stage.ask("PUT", "/v1/pools/odd", ODD).status == 201
    assert stage.ask("PUT", "/v1/tenants/acme", {"weight": 3, "parkTTL": "5m"}).status == 200
    for noun, printed in (("pools", {"agents", "odd"}), ("tenants", {"acme"})):
        result = real_cli("get", noun, "-o", "yaml")
        assert result.code == 0, result.err
        (tmp_path / f"{noun}.yaml").write_text(result.out)
        again = real_cli("apply", "-f", f"{noun}.yaml")
        kind = {"pools": "WorkerPool", "tenants": "Tenant"}[noun]
        assert set(again.out.splitlines()) == {f"{kind} {name} unchanged" for name in printed}, again.err
    one = real_cli("get", "pools", "odd", "-o", "yaml").out
    assert one.startswith("apiVersion: holdfast.dev/v1alpha1\nkind: WorkerPool\nmetadata:\n  name: odd\nspec:\n  mode: session\n")
    assert "startTimeout" not in one, "defaults are left out"
    assert "      - |\n        set -e\n" in one, "a script is readable"
    (tmp_path / "one.yaml").write_text(one)
    assert real_cli("diff", "-f", "one.yaml").code == 0


def test_a_pool_that_is_being_deleted_is_not_printed_as_yaml(real_cli: Cli, stage: Stage) -> None:
    stage.ask("DELETE", "/v1/pools/direct")
    stage.ask("PUT", "/v1/pools/direct", {"warm": 0})
    assert real_cli("get", "pools").out.count("direct") == 2
    assert real_cli("get", "pools", "-o", "yaml").out.count("name: direct") == 1


def test_other_nouns_and_watching_are_refused(real_cli: Cli) -> None:
    for arguments in (["claims"], ["pools", "--watch"]):
        result = real_cli("get", *arguments, "-o", "yaml")
        assert (result.code, "-o yaml prints pools and tenants, once" in result.err) == (2, True)
