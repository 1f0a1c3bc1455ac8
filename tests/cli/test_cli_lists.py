"""`holdfast get` against a real server: filters, and lists that are longer than one page."""

import json
import re

from cli_results import Cli

from served_api import Stage


def ids(printed: str) -> list[str]:
    return re.findall(r"^(c-\S+|w-\S+)", printed, re.MULTILINE)


def test_get_claims_by_outcome_key_tenant_worker_and_age(real_cli: Cli, stage: Stage) -> None:
    mine, rivals = stage.claim("acme", key="build-7"), stage.claim("rival")
    stage.ask("POST", f"/v1/claims/{rivals['id']}/release", {"fence": rivals["fence"]}, token="rival")
    assert ids(real_cli("get", "claims", "--outcome", "released").out) == [rivals["id"]]
    assert ids(real_cli("get", "claims", "--key", "build-7").out) == [mine["id"]]
    assert ids(real_cli("get", "claims", "--tenant", "acme").out) == [mine["id"]]
    assert ids(real_cli("get", "claims", "--worker", mine["worker"]).out) == [mine["id"]]
    assert ids(real_cli("get", "claim", "--since", "10m").out) == [rivals["id"], mine["id"]]
    assert ids(real_cli("get", "workers", "--tenant", "acme").out) == [mine["worker"]]


def test_get_claims_shows_a_page_and_how_to_see_the_next_one(real_cli: Cli, stage: Stage) -> None:
    made = [stage.claim()["id"] for _ in range(5)][::-1]
    first = real_cli("get", "claims", "--limit", "2")
    assert ids(first.out) == made[:2]
    found = re.search(r"there are more: --cursor (\S+) shows the next, --all shows every one", first.err)
    assert found
    assert ids(real_cli("get", "claims", "--limit", "3", "--cursor", found[1]).out) == made[2:]
    whole = real_cli("get", "claims", "--all")
    assert (ids(whole.out), whole.err) == (made, "")
    assert [claim["id"] for claim in json.loads(real_cli("get", "claims", "--all", "-o", "json").out)["items"]] == made


def test_all_pages_are_read_when_the_list_is_longer_than_one(real_cli: Cli, stage: Stage) -> None:
    stage.do(
        stage.store.db.rows(
            """INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, tag, outcome, max_duration,
                                           created_at, ended_at, deadline_heard)
               SELECT 'c-' || n, 'p-direct', 'acme', '', '{}', 'ended', 0, 'completed', '1 h', holdfast.now(), holdfast.now(),
                      holdfast.now() FROM generate_series(1, 2100) n"""
        )
    )
    assert len(ids(real_cli("get", "claims", "--all").out)) == 2100
    result = real_cli("get", "claims", "--limit", "1500")
    assert len(ids(result.out)) == 1500
    assert "there are more" in result.err


def test_get_of_a_pool_that_does_not_exist_is_an_error(real_cli: Cli, stage: Stage) -> None:
    for noun in ("claims", "workers", "events"):
        result = real_cli("get", noun, "--pool", "dirett")
        assert (result.code, result.out) == (1, "")
        assert "there is no pool 'dirett'; did you mean 'direct'?" in result.err


def test_a_claim_made_with_labels_is_found_by_them(real_cli: Cli, stage: Stage) -> None:
    made = json.loads(real_cli("claim", "--pool", "direct", "-l", "team=web", "--label", "ci", "-o", "json").out)
    assert made["labels"] == {"team": "web", "ci": ""}
    stage.claim(labels={"team": "data"})
    assert ids(real_cli("get", "claims", "-l", "team=web,ci").out) == [made["id"]]
    assert json.loads(real_cli("get", "claims", made["id"], "-o", "json").out)["labels"] == made["labels"]
    assert "Its labels are ci, team=web." in real_cli("explain", "claim", made["id"]).out
    assert ids(real_cli("run", "--pool", "agents", "-l", "team=jobs", "--detach", "--", "true").out) == ids(
        real_cli("get", "claims", "-l", "team=jobs").out
    )
    result = real_cli("claim", "--pool", "direct", "-l", "a=1", "-l", "a=2")
    assert (result.code, result.err) == (2, "holdfast: --label a: is given twice, with different values\n")
