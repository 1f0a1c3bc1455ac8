"""`holdfast get events` against a real server: the newest events are shown, and every earlier one can be reached."""

import json
import re

import pytest
from cli_results import Cli

from fleet import eventually
from served_api import Stage


def make_history(stage: Stage, count: int = 30) -> list[str]:
    """Writes events with the reasons 0, 1, 2, …, and returns the reasons."""
    for n in range(count):
        stage.do(stage.store.history.note("pool.troubled", f"reason-{n}", pool_id="p-direct"))
    stage.do(stage.store.history.note("brake.tripped", "the last one"))
    eventually(lambda: b"the last one" in stage.ask("GET", "/v1/events?newest=true").raw, 10)
    return [f"reason-{n}" for n in range(count)]


def reasons(printed: str) -> list[str]:
    return re.findall(r"reason-\d+", printed)


def test_get_events_shows_the_newest_and_the_newest_is_last(real_cli: Cli, stage: Stage) -> None:
    made = make_history(stage, 120)
    result = real_cli("get", "events")
    assert result.code == 0
    assert result.out.splitlines()[-1].endswith("the last one")
    assert reasons(result.out) == made[-99:], "a hundred are shown"
    result = real_cli("get", "events", "--tail", "3")
    assert (len(result.out.splitlines()), reasons(result.out)) == (4, made[-2:])
    shown = json.loads(real_cli("get", "events", "--tail", "3", "-o", "json").out)
    assert [event["reason"] for event in shown["items"]] == [*made[-2:], "the last one"]


def test_the_cursor_that_get_events_prints_leads_to_the_events_before(real_cli: Cli, stage: Stage) -> None:
    made = make_history(stage)
    result = real_cli("get", "events", "--tail", "11")
    seen = reasons(result.out)
    while cursor := re.search(r"--cursor (\S+) shows them", result.err):
        result = real_cli("get", "events", "--limit", "11", "--cursor", cursor[1])
        seen = reasons(result.out) + seen
    assert seen == made
    assert reasons(real_cli("get", "events", "--all").out) == made
    more = real_cli("get", "events", "--tail", "1500", "--kind", "pool.troubled")
    assert (reasons(more.out), more.err) == (made, "")


def test_get_events_filters_by_kind_and_time_and_pool(real_cli: Cli, stage: Stage) -> None:
    made = make_history(stage)
    assert real_cli("get", "events", "--kind", "brake").out.count("the last one") == 1
    assert reasons(real_cli("get", "events", "--kind", "brake,pool.frozen").out) == []
    assert reasons(real_cli("get", "events", "--since", "10m", "--pool", "direct").out) == made
    assert reasons(real_cli("get", "events", "--pool", "agents").out) == []
    nothing = real_cli("get", "events", "--until", "10m")
    assert (nothing.out, nothing.err) == ("", "no events\n")
    assert "the last one" in real_cli("get", "events", "--since", "2020-01-01 08:00").out, "a time in the zone of the machine"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("events", "--pool", "dirett"), 1, "there is no pool 'dirett'; did you mean 'direct'?"),
        (("events", "dirett"), 1, "there is no pool 'dirett'; did you mean 'direct'?"),
        (("events", "--kind", "claim.endet"), 1, "did you mean 'claim.ended'?"),
        (("events", "--since", "soon"), 1, "is neither a duration such as 10m nor a time"),
        (("events", "--tail", "3", "--limit", "4"), 2, "--tail and --limit mean the same"),
        (("events", "--all", "--cursor", "x"), 2, "--all shows everything"),
        (("events", "--watch", "--until", "1m"), 2, "--watch shows what happens from now on"),
        (("pools", "--kind", "claim"), 2, "--kind does not go with pools, only with events"),
        (("pols",), 2, "did you mean 'pools'?"),
    ],
)
def test_a_mistake_in_get_is_refused_with_a_hint(
    real_cli: Cli, stage: Stage, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = real_cli("get", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("singular", "plural"), [("pool", "pools"), ("worker", "workers"), ("event", "events"), ("duty", "duties")]
)
def test_get_takes_the_singular_and_the_plural(real_cli: Cli, stage: Stage, singular: str, plural: str) -> None:
    assert real_cli("get", singular, "-o", "json").out.count('"id"') == real_cli("get", plural, "-o", "json").out.count('"id"')


def test_explain_takes_the_singular_and_the_plural(real_cli: Cli, stage: Stage) -> None:
    assert real_cli("explain", "pools", "direct").out == real_cli("explain", "pool", "direct").out != ""
    assert "did you mean 'claim'?" in real_cli("explain", "klaim", "c-1").err


def test_get_events_shows_who_did_it(real_cli: Cli, stage: Stage) -> None:
    stage.ask("POST", "/v1/pools/direct/freeze", {"reason": "looking"}, token="operator")
    eventually(lambda: "looking" in real_cli("get", "events", "--kind", "pool.frozen").out, 5)
    header, row = real_cli("get", "events", "--kind", "pool.frozen").out.splitlines()
    at = header.index("BY")
    assert row[at:].split()[0] == "operator"
    assert "(by operator)" in real_cli("get", "events", "--kind", "pool.frozen", "--all").out
