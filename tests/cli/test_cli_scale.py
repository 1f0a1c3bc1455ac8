"""`scale` changes a pool's size and nothing else. On the real API."""

import json

from cli_results import Cli

from served_api import Stage


def test_scaling_a_pool_prints_its_size(real_cli: Cli, stage: Stage) -> None:
    assert real_cli("scale", "agents", "--warm", "2").out == "pool agents scaled: warm 2, max 5\n"
    assert real_cli("scale", "agents", "--warm", "3", "--max", "8").out == "pool agents scaled: warm 3, max 8\n"
    assert json.loads(real_cli("scale", "agents", "--max", "9", "-o", "json").out)["spec"]["max"] == 9
    assert stage.ask("GET", "/v1/pools/agents").json["spec"]["warm"] == 3


def test_a_size_that_makes_no_sense_is_refused_and_changes_nothing(real_cli: Cli, stage: Stage) -> None:
    before = stage.ask("GET", "/v1/pools/agents").json
    refused = real_cli("scale", "agents", "--warm", "6")
    assert (refused.code, "warm (6) must not exceed max (5)" in refused.err) == (1, True)
    assert (real_cli("scale", "agents").code, real_cli("scale", "agents", "--warm", "-1").code) == (2, 2)
    unknown = real_cli("scale", "agent", "--warm", "1")
    assert (unknown.code, "did you mean 'agents'?" in unknown.err) == (1, True)
    assert stage.ask("GET", "/v1/pools/agents").json == before
