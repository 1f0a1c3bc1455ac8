"""Text of users and workers cannot change a terminal, forge a second line, or show its letters in another order."""

import json

import pytest
import structlog
import yaml

from holdfast.cli.as_yaml import document
from holdfast.cli.connection import print_message
from holdfast.cli.event_list import print_event
from holdfast.cli.show import print_json, print_table
from holdfast.model.pool import PoolSpec, problems
from holdfast.model.shown import is_safe, shown, shown_lines
from holdfast.serve import _on_terminal
from served_api import Stage

OVERRIDES = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
BREAKS = "\n\r\v\f\x85\u2028\u2029"
CONTROLS = "\x00\x07\x08\x1b\x7f\x9b\ufeff"
UNSAFE = OVERRIDES + BREAKS + CONTROLS
EVIL = f"fine{UNSAFE}\x1b[2J\x1b]0;title\x07evil"


def unsafe_in(text: str) -> set[str]:
    return set(text) & set(UNSAFE) - {"\n"}


@pytest.mark.parametrize("character", UNSAFE, ids=lambda each: f"U+{ord(each):04X}")
def test_no_such_character_is_shown(character: str) -> None:
    text = f"a{character}b"
    assert not is_safe(text)
    assert character not in shown(text)
    assert shown(text) == shown(shown(text)), "text that was cleaned by the server is printed as it is"
    assert character == "\n" or character not in shown_lines(text)


def test_ordinary_text_stays_as_it_is() -> None:
    text = "größer 東京\u3000 مرحبا שלום 👩\u200d👩\u200d👧 a\u00a0b"
    assert (shown(text), shown_lines(f"{text}\n\tb")) == (text, f"{text}\n\tb")
    assert shown("first\nsecond\x1b[31m\u202e") == r"first second\x1b[31m\u202e"


@pytest.mark.parametrize("character", UNSAFE, ids=lambda each: f"U+{ord(each):04X}")
def test_no_label_of_a_pool_has_such_a_character(character: str) -> None:
    (found,) = problems(PoolSpec(labels=["fine", f"a{character}"]))
    assert (found.field, found.reason) == ("labels[1]", "must be one line without control characters")


def test_tables_messages_and_events_print_text_without_its_effect(capsys: pytest.CaptureFixture[str]) -> None:
    event = {"at": "2026-01-31T12:00:00Z", "kind": "claim.ended", "reason": EVIL, "pool": EVIL, "actor": {"name": EVIL}}
    print_table("pools", [{"name": EVIL, "spec": {"mode": "job"}, "status": {"trouble": EVIL}}], wide=True)
    print_table("events", [event], wide=True)
    print_event(event, "table")
    print_event(event, "json")
    print_json({"a": EVIL})
    print_message(f"holdfast: {EVIL}")
    printed = capsys.readouterr()
    assert not unsafe_in(printed.out)
    assert not unsafe_in(printed.err)
    assert r"\x1b[2J" in printed.err
    *_, shown_json = printed.out.split("{\n")
    assert json.loads("{" + shown_json)["a"] == EVIL, "JSON keeps its meaning"
    assert printed.out.count("evil") >= 5


def test_yaml_that_apply_takes_back_is_printed_without_its_effect() -> None:
    spec = {"worker": {"run": ["sh", "-c", EVIL]}, "labels": ["\u202ea", "größer"]}
    printed = document("WorkerPool", "linux", spec)
    assert not unsafe_in(printed)
    assert yaml.safe_load(printed)["spec"] == spec
    assert "größer" in document("WorkerPool", "linux", {"labels": ["größer"]})


def test_a_log_line_on_a_terminal_has_only_its_own_colours() -> None:
    line = _on_terminal(structlog.get_logger(), "info", {"event": "a request failed", "reason": EVIL})
    assert not unsafe_in(line) - {"\x1b"}
    assert "\x1b[2J" not in line


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/pools/direct/freeze", {"reason": "a\u202eb"}, "reason"),
        ("/v1/tokens", {"name": "a\u2028b", "role": "operator"}, "name"),
        ("/v1/tokens", {"name": "a\x1bb", "role": "operator"}, "name"),
    ],
)
def test_what_users_write_for_others_to_read_is_refused_with_its_field(
    stage: Stage, path: str, body: dict[str, str], field: str
) -> None:
    answer = stage.ask("POST", path, body)
    assert answer.status == 422
    assert [each["field"] for each in answer.json["errors"]] == [field]
    assert "one line without control characters" in answer.json["detail"]


def test_a_label_of_a_pool_is_refused_and_explanations_are_clean(stage: Stage) -> None:
    refused = stage.ask("PUT", "/v1/pools/new", {"labels": ["gpu\x1b[31m"]})
    assert (refused.status, refused.json["errors"][0]["field"]) == (422, "labels[0]")
    stage.do(stage.store.pools.trouble("p-direct", EVIL.replace("\x00", ""), 60.0))
    sentences = stage.ask("GET", "/v1/explain/pool/direct").json["sentences"]
    assert any("evil" in each for each in sentences)
    assert not any(unsafe_in(each) or "\n" in each for each in sentences)
