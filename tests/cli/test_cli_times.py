"""People read how long ago something was, and the time of their own zone."""

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cli_results import Cli

from holdfast.cli.times import age, ago, local, localized, span
from served_api import Stage


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("seconds", "expected"), [
    (0, "0 s"), (0.9, "0 s"), (18, "18 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"),
    (172799, "47 h"), (172800, "2 days"), (86400 * 400, "400 days"),
])  # fmt: skip
def test_a_length_of_time_has_one_unit(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


def test_a_moment_is_ago_or_ahead_and_never_negative() -> None:
    now = datetime.now(UTC)
    assert ago((now - timedelta(minutes=5, seconds=1)).isoformat()) == "5 min ago"
    assert ago((now + timedelta(minutes=5, seconds=30)).isoformat()) == "in 5 min"
    assert ago((now + timedelta(milliseconds=300)).isoformat()) == "0 s ago", "the server's clock is a little ahead"
    assert ago(now.isoformat().replace("+00:00", "Z")) == "0 s ago"
    assert (ago(None), age(None), local(None), local("soon")) == ("", "", "", "soon")


def test_a_time_is_that_of_this_machine_with_the_date_unless_it_is_today(tokyo: None) -> None:
    assert local("2026-01-01T20:00:00+00:00") == "2026-01-02 05:00:00"
    now = datetime.now(UTC)
    assert local(now.isoformat()) == now.astimezone().strftime("%H:%M:%S")
    assert now.astimezone().utcoffset() == timedelta(hours=9)


def test_the_times_in_a_sentence_are_those_of_this_machine(tokyo: None) -> None:
    said = "It has waited for 3s, since 2026-01-01 20:00:00 UTC; 2026-01-01 20:00:00.123 UTC  claim.created c-1"
    assert localized(said) == "It has waited for 3s, since 2026-01-02 05:00:00; 2026-01-02 05:00:00.123  claim.created c-1"
    assert localized("at 2026-13-45 20:00:00 UTC") == "at 2026-13-45 20:00:00 UTC", "that is no time"


def test_a_person_in_tokyo_reads_explain_and_renew_in_their_own_time_and_programs_in_utc(
    stage: Stage, real_cli: Cli, tokyo: None
) -> None:
    claim = stage.claim(lease="60s")
    here = datetime.now().astimezone()
    assert here.utcoffset() == timedelta(hours=9)
    shown = real_cli("explain", "claim", claim["id"]).out
    assert "UTC" not in shown
    moments = re.findall(r"since (?:\S+ )?(\d\d):\d\d:\d\d\.$|^(?:\S+ )?(\d\d):\d\d:\d\d\.\d{3}  claim", shown, re.MULTILINE)
    hours = {f"{(here - timedelta(minutes=late)).hour:02d}" for late in (0, 10)}  # also if an hour ends meanwhile
    assert len(moments) == 4, shown
    assert {sentence or event for sentence, event in moments} <= hours, shown
    exact = json.loads(real_cli("explain", "claim", claim["id"], "-o", "json").out)["sentences"]
    assert any(" UTC" in sentence for sentence in exact)
    renewed = real_cli("--token", "acme", "renew", claim["id"], "--fence", str(claim["fence"]))
    until = local(json.loads(real_cli("get", "claims", claim["id"], "-o", "json").out)["lease_until"])
    assert renewed.out == f"claim {claim['id']} renewed until {until}\n", renewed.err
