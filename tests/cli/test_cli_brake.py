"""`brake` shows the brake, sets its limits and releases it. On the real API."""

import json

from cli_results import Cli

from served_api import Stage


def test_limits_are_set_one_by_one_and_shown(real_cli: Cli, stage: Stage) -> None:
    assert real_cli("brake", "set").code == 2
    assert real_cli("brake", "set", "--claims", "70").code == 0
    found = json.loads(real_cli("brake", "set", "--workers", "80", "--share", "0.5", "--tenant-share", "0.2", "-o", "json").out)
    assert [found[name] for name in ("workers", "claims", "share", "tenant_share")] == [80, 70, 0.5, 0.2]
    shown = real_cli("brake").out
    assert "claims:       70" in shown
    assert "limit:" not in shown
    refused = real_cli("brake", "set", "--tenant-share", "0")
    assert (refused.code, "tenantShare" in refused.err) == (1, True)


def test_the_brake_of_a_tenant_is_shown_and_released(real_cli: Cli, stage: Stage) -> None:
    stage.do(stage.store.db.rows("INSERT INTO holdfast.tenant_brake VALUES ('acme', now(), 'planted')"))
    shown = real_cli("brake").out
    assert "tenant:       acme" in shown
    assert "planted" in shown
    assert "BRAKE OF TENANT acme TRIPPED" in real_cli("top", "--once").out
    refused = real_cli("brake", "release", "--reason", "looked at it")
    assert (refused.code, "name one of them: acme" in refused.err) == (1, True)
    assert real_cli("brake", "release", "--tenant", "acme", "--reason", "looked at it").out == "brake of tenant acme released\n"
    assert "acme" not in real_cli("brake").out


def test_a_token_is_revoked_with_its_claims(real_cli: Cli, stage: Stage) -> None:
    claim = stage.claim()
    assert real_cli("token", "revoke", "t-acme", "--cancel").out == "token t-acme revoked, claims cancelled: 1\n"
    assert stage.ask("GET", f"/v1/claims/{claim['id']}").json["outcome"] == "cancelled"
