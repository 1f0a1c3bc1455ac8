"""An operator claims a worker for a tenant on the command line, and can renew and release that claim."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from served_api import Stage


class Operator:
    """Runs commands with an operator's token."""

    def __init__(self, stage: Stage, home: Path) -> None:
        self._env = {**os.environ, "HOLDFAST_URL": stage.url, "HOLDFAST_TOKEN": "operator", "XDG_CONFIG_HOME": str(home)}

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "holdfast", *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    def claim(self, *options: str) -> dict[str, Any]:
        code, out, err = self("claim", "--pool", "direct", "--tenant", "acme", *options, "-o", "json")
        assert code == 0, err
        claim: dict[str, Any] = json.loads(out)
        assert (claim["state"], claim["tenant"]) == ("active", "acme")
        return claim


@pytest.fixture
def operator(stage: Stage, tmp_path: Path) -> Operator:
    return Operator(stage, tmp_path)


def state(stage: Stage, claim: dict[str, Any]) -> tuple[str, str | None]:
    shown = stage.ask("GET", f"/v1/claims/{claim['id']}").json
    return shown["state"], shown["outcome"]


def test_an_operator_releases_what_it_claimed_for_a_tenant(stage: Stage, operator: Operator) -> None:
    claim = operator.claim()
    code, _, err = operator("release", claim["id"])
    assert code == 1
    assert "belongs to tenant 'acme'" in err
    assert f"`holdfast release {claim['id']} --fence N`" in err  # what to do
    assert "--force --reason" in err
    assert state(stage, claim) == ("active", None)

    code, out, err = operator("release", claim["id"], "--fence", str(claim["fence"]))
    assert (code, out) == (0, f"claim {claim['id']} released\n"), err
    assert state(stage, claim) == ("ended", "released")


def test_an_operator_renews_what_it_claimed_for_a_tenant(stage: Stage, operator: Operator) -> None:
    claim = operator.claim("--lease", "60s")
    code, out, err = operator("renew", claim["id"], "--fence", str(claim["fence"]))
    assert code == 0, err
    assert re.fullmatch(rf"claim {claim['id']} renewed until \d\d:\d\d:\d\d\n", out), "the time of this machine"
    used = "UPDATE holdfast.claim SET lease_heard = lease_heard - interval '30 s' WHERE id = $1 RETURNING true"
    assert stage.do(stage.store.db.value(used, claim["id"]))  # half of the lease is over
    before = stage.ask("GET", f"/v1/claims/{claim['id']}").json["lease_until"]
    renewed = json.loads(operator("renew", claim["id"], "--fence", str(claim["fence"]), "-o", "json")[1])
    assert renewed["lease_until"] > before


def test_a_claim_without_a_lease_has_nothing_to_renew(operator: Operator) -> None:
    claim = operator.claim()
    code, out, err = operator("renew", claim["id"], "--fence", str(claim["fence"]))
    assert (code, out) == (0, f"claim {claim['id']} has no lease, so there is nothing to renew\n"), err


def test_an_old_fence_is_refused_with_the_way_to_find_the_current_one(stage: Stage, operator: Operator) -> None:
    claim = operator.claim("--lease", "60s")
    for verb in ("renew", "release"):
        code, _, err = operator(verb, claim["id"], "--fence", "1")
        assert code == 1
        assert f"`holdfast get claims {claim['id']} -o json` shows the current one" in err
    assert json.loads(operator("get", "claims", claim["id"], "-o", "json")[1])["fence"] == claim["fence"]
    assert state(stage, claim) == ("active", None)


def test_a_fence_and_force_together_are_refused(stage: Stage, operator: Operator) -> None:
    claim = operator.claim()
    code, _, err = operator("release", claim["id"], "--fence", str(claim["fence"]), "--force", "--reason", "stuck")
    assert (code, "give only one of them" in err) == (2, True)
    assert state(stage, claim) == ("active", None)
