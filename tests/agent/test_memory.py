"""What an agent remembers of its session, for when it is restarted alone."""

import stat
from pathlib import Path

import pytest

from holdfast.agent.memory import HELD, forget, remember, remembered
from holdfast.agent.messages import Assignment

GIVEN = Assignment(claim="c-1", fence=7, tenant="acme", credential="hfc_x", secrets={"TOKEN": "s3cret"})


def test_it_knows_again_what_it_held_and_no_secret_is_written(tmp_path: Path) -> None:
    remember(tmp_path, GIVEN)
    assert remembered(tmp_path) == Assignment(claim="c-1", fence=7, tenant="acme", credential="hfc_x")
    assert b"s3cret" not in (tmp_path / HELD).read_bytes()
    assert stat.S_IMODE((tmp_path / HELD).stat().st_mode) == 0o600
    forget(tmp_path)
    assert remembered(tmp_path) is None


def test_the_latest_counts_and_a_draft_of_one_that_died_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / f"{HELD}.new").write_text("{")
    remember(tmp_path, GIVEN)
    remember(tmp_path, Assignment(claim="c-2", fence=8, tenant="acme"))
    held = remembered(tmp_path)
    assert held is not None
    assert (held.claim, held.fence, held.credential) == ("c-2", 8, None)


@pytest.mark.parametrize("text", ["", "{", '{"claim": "c-1"}', '{"claim": 1, "fence": 2, "tenant": "a"}'])
def test_what_cannot_be_read_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / HELD).write_text(text)
    assert remembered(tmp_path) is None
