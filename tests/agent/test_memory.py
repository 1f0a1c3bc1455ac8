"""What the agent of a session stores, so that it can continue after a restart of its container."""

import stat
from pathlib import Path

import pytest

from holdfast.agent.memory import KEPT, Held, Kept, Memory, PodSettings
from holdfast.agent.messages import Assignment, Hooks, Registration

FIRST = Registration(token="t0ken", mode="session", worker=Hooks(port=8080), grace=60, output_limit=1000)
GIVEN = Assignment(claim="c-1", fence=7, tenant="acme", credential="hfc_x", secrets={"TOKEN": "s3cret"})


def begun(folder: Path) -> Memory:
    memory = Memory(folder)
    memory.begin(FIRST)
    return memory


def test_it_knows_again_what_it_held_and_no_secret_is_written(tmp_path: Path) -> None:
    begun(tmp_path).hold(GIVEN, served=3)
    kept = Memory(tmp_path).kept
    assert kept is not None
    assert (kept.held, kept.served, kept.reset) == (Held("c-1", 7, "acme", "hfc_x"), 3, True)
    content = (tmp_path / KEPT).read_bytes()
    assert b"s3cret" not in content
    assert b"t0ken" not in content
    assert stat.S_IMODE((tmp_path / KEPT).stat().st_mode) == 0o600


def test_it_knows_that_it_has_served_and_whether_it_was_reset_since(tmp_path: Path) -> None:
    memory = begun(tmp_path)
    memory.hold(GIVEN, None)
    memory.let_go(7, reset=False)
    assert Memory(tmp_path).kept == Kept(PodSettings("session", Hooks(port=8080), 60, 1000), None, 7, False)
    memory.let_go(7)
    kept = Memory(tmp_path).kept
    assert kept is not None
    assert (kept.held, kept.served, kept.reset) == (None, 7, True)
    assert b"hfc_x" not in (tmp_path / KEPT).read_bytes()


def test_the_settings_of_its_first_start_hold_and_the_token_is_the_new_one(tmp_path: Path) -> None:
    begun(tmp_path)
    later = Registration(token="second", mode="session", worker=Hooks(port=9090), grace=5, output_limit=1, poll_seconds=9)
    now = Memory(tmp_path).begin(later)
    assert (now.worker.port, now.grace, now.output_limit) == (8080, 60, 1000)
    assert (now.token, now.poll_seconds) == ("second", 9)


def test_a_draft_of_one_that_died_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / KEPT).with_suffix(".new").write_text("{")
    assert begun(tmp_path).kept == Memory(tmp_path).kept


@pytest.mark.parametrize("text", ["", "{", "{}", '{"settings": {"mode": 1}}'])
def test_what_cannot_be_read_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / KEPT).write_text(text)
    assert Memory(tmp_path).kept is None
