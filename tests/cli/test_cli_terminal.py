"""In a terminal of 80 columns, tables leave out whole columns instead of cutting words, and `top` uses the screen it has."""

import os
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast
from terminals import Terminal

from holdfast.cli.fitting import fit


@pytest.fixture
def env(server: FakeHoldfast, cli: Cli) -> dict[str, str]:
    return {"HOLDFAST_URL": ",".join(server.urls), "HOLDFAST_TOKEN": TOKEN, "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}


def before(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def running(number: int, **fields: Any) -> dict[str, Any]:
    name = f"{number:012d}"
    return {
        "id": f"c-{name}", "pool": "linux-large", "tenant": "acme-corporation", "state": "active", "worker": f"w-{name}",
        "created_at": before(18), "active_at": before(18), "reason": "acknowledged by its agent after the activation hook",
    } | fields  # fmt: skip


def pool(name: str, **fields: Any) -> dict[str, Any]:
    status = {"warm": 3, "held": 5, "parked": 1, "spawning": 2, "retiring": 1, "waiting": 2, "oldest_wait": 61.0}
    return {"name": name, "state": "live", "frozen": None, "spec": {"mode": "job", "max": 8}, "status": status} | fields


def test_a_list_on_80_columns_leaves_out_whole_columns_and_says_which(server: FakeHoldfast, env: dict[str, str]) -> None:
    server.claims |= {each["id"]: each for each in (running(1), running(2, reason=None))}
    with Terminal("get", "claims", env=env) as terminal:
        assert terminal.ends() == 0
        *lines, below = terminal.text.splitlines()
    assert below == "left out: TENANT, WORKER; -o wide shows all columns"
    assert lines[0].split() == ["ID", "POOL", "STATE", "CREATED", "REASON"]
    assert all(len(line) <= 80 for line in lines)
    words = " ".join(lines).split()
    assert words.count("c-000000000001") == 1
    assert re.search(r" \d\d s ago ", " ".join(words))
    wrapped = [line[lines[0].index("REASON") :].strip() for line in lines[1:]]
    assert " ".join(" ".join(wrapped).split()) == "acknowledged by its agent after the activation hook"


def test_wide_shows_all_columns_on_any_terminal(server: FakeHoldfast, env: dict[str, str]) -> None:
    server.claims["c-1"] = running(1)
    with Terminal("get", "claims", "-o", "wide", env=env) as terminal:
        assert terminal.ends() == 0
        title, row = terminal.text.splitlines()
    assert title.split() == ["ID", "POOL", "TENANT", "STATE", "OUTCOME", "EXIT", "WORKER", "CREATED", "REASON"]
    assert row.split()[:4] == ["c-000000000001", "linux-large", "acme-corporation", "active"]
    assert row.endswith("acknowledged by its agent after the activation hook")


def test_every_table_fits_80_columns_however_long_its_words_are() -> None:
    from holdfast.cli.show import COLUMNS

    for kind, columns in COLUMNS.items():
        titles = [title for title, _ in columns]
        for length in (1, 8, 14, 40):
            found = fit(kind, titles, [["x" * length for _ in titles]], 80)
            assert sum(found.shown.values()) + 2 * (len(found.shown) - 1) <= 80 or len(found.shown) == 1, (kind, length)
            assert 0 in found.shown, "the first column names the thing"
            assert sorted([*(titles[place] for place in found.shown), *found.left_out]) == sorted(titles)


def test_empty_columns_go_first_and_are_not_reported() -> None:
    found = fit("workers", ["ID", "POOL", "STATE", "NODE"], [["w-1", "p" * 30, "", "n" * 30]], 70)
    assert (list(found.shown), found.left_out) == ([0, 1, 3], [])


def test_top_fills_the_screen_with_header_pools_running_claims_and_events(server: FakeHoldfast, env: dict[str, str]) -> None:
    server.pools |= {"linux": pool("linux"), "mac": pool("mac", frozen="a look at a stuck job")}
    server.claims |= {each["id"]: each for each in (running(1), running(2))}
    for number in range(40):
        server.happen("claim.active", claim=f"c-{number:012d}", worker="w-1", pool="linux", reason="acknowledged")
    with Terminal("top", env=env, columns=80, lines=30) as terminal:
        frame = terminal.frame_with("q quits")
        assert len(frame) == 30
        assert all(len(line) <= 80 for line in frame), frame
        assert re.match(r"holdfast i-fake   1 replica live   \d\d:\d\d:\d\d   brake not tripped", frame[0])
        text = "\n".join(frame)
        assert [line.split()[0] for line in frame if line.startswith(("linux", "mac"))] == ["linux", "mac"]
        assert "frozen: a look at a stuck job" in " ".join(text.split())
        assert {"c-000000000001", "c-000000000002"} <= set(text.split())
        events = [line for line in frame if "claim.active" in line]
        assert "c-000000000039" in events[-1], "the newest event is the last"
        assert len(events) >= 5, "events use the lines that are left"
        terminal.press("q")
        assert terminal.ends() == 0


def test_top_shows_the_brake_in_red_and_the_duties_that_are_stale(server: FakeHoldfast, env: dict[str, str]) -> None:
    server.brake = {"tripped": True, "tripped_at": before(300), "reason": "50 claims were ended in ten minutes, of 80"}
    server.duties[0]["age"] = 60.0
    with Terminal("top", env=env) as terminal:
        frame = terminal.frame_with("q quits")
        assert frame[1].startswith("BRAKE TRIPPED 5 min ago: 50 claims were ended in ten minutes, of 80;")
        assert "\x1b[1;31mBRAKE TRIPPED" in terminal.raw
        assert "\x1b[1;31mmatch 1m STALE" in terminal.raw
        terminal.press("q")
        assert terminal.ends() == 0
    with Terminal("top", "--once", env=env | {"NO_COLOR": "1"}) as terminal:
        assert terminal.ends() == 0
        assert "BRAKE TRIPPED" in terminal.text
        assert "\x1b[1;31m" not in terminal.raw


def test_typing_a_slash_shows_only_the_pools_that_contain_what_follows(server: FakeHoldfast, env: dict[str, str]) -> None:
    server.pools |= {"linux": pool("linux"), "mac": pool("mac")}
    server.claims |= {"c-1": running(1, pool="linux"), "c-2": running(2, pool="mac")}
    with Terminal("top", env=env) as terminal:
        terminal.frame_with("c-000000000001")
        terminal.press("/")
        terminal.press("ma")
        frame = terminal.frame_with("pools with: ma_")
        assert "linux" not in "\n".join(frame)
        assert "c-000000000002" in "\n".join(frame)
        terminal.press("q")  # part of the text, because it is still being typed
        terminal.frame_with("pools with: maq_")
        terminal.press("\x7f")
        terminal.frame_with("pools with: ma_")
        terminal.press("\r")
        terminal.frame_with("/ changes it")
        terminal.press("\x1b")
        terminal.frame_with("linux")
        assert not terminal.echoes
        terminal.press("q")
        assert terminal.ends() == 0
        assert terminal.echoes


def test_a_top_that_is_ended_leaves_the_terminal_as_it_was(server: FakeHoldfast, env: dict[str, str]) -> None:
    with Terminal("top", env=env) as terminal:
        terminal.frame_with("q quits")
        terminal.process.terminate()
        assert terminal.ends() == 143
        assert terminal.echoes
        assert terminal.raw.endswith("\x1b[?25h\x1b[?1049l"), "the cursor and the screen of before are back"


def test_top_draws_again_when_the_terminal_gets_another_size(server: FakeHoldfast, env: dict[str, str]) -> None:
    server.pools["linux-with-much-memory"] = pool("linux-with-much-memory")
    with Terminal("top", env=env, columns=80, lines=24) as terminal:
        frame = terminal.frame_with("q quits")
        assert "left out: RETIRING" in frame[-2], "the line above the keys names what the terminal has no room for"
        assert "RETIRING" not in "\n".join(frame[:-2])
        terminal.resize(200, 40)
        frame = terminal.frame_with("RETIRING  ")
        assert len(frame) == 40
        assert "left out" not in "\n".join(frame)
        terminal.press("q")
        assert terminal.ends() == 0
