"""Starts real agents, each in its own process, against a control plane on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_control_plane import Plane
from running_agent import Running
from scripted_server import Place
from session_life import begin, other_container  # noqa: F401 - fixtures


@pytest.fixture
def planes() -> Iterator[Callable[..., Plane]]:
    made: list[Plane] = []

    def make(**settings: Any) -> Plane:
        made.append(Plane(**settings))
        return made[-1]

    yield make
    for plane in made:
        plane.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Returns a folder for an agent in this process, whose clock is virtual."""
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*planes: Plane, **env: str) -> Running:
        folder = tmp_path / f"agent-{len(started)}"
        folder.mkdir()
        started.append(Running(folder, [plane.url for plane in planes], **env))
        return started[-1]

    yield start
    for each in started:
        print(each.log)
        each.end()
