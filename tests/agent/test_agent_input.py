"""An agent passes the caller's input to its command, at the command's pace, and reports when the command reads no more."""

import hashlib
import random
from collections.abc import Callable

from agent_control_plane import Plane
from running_agent import Running

from waiting import eventually

Planes = Callable[..., Plane]
Agents = Callable[..., Running]


def test_a_command_reads_what_was_sent_and_its_end(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.input = random.Random(1).randbytes(1_000_000)
    plane.assign(command=["sha256sum"], stdin=True)
    running = agent(plane)
    eventually(lambda: any(call["taken"] == 1_000_000 for call in plane.received("input")), 30, "all of it was taken")
    assert plane.received("result") == [], "the command waits for more"
    plane.input_ends = True
    assert running.exit_code() == 0
    assert running.output() == f"{hashlib.sha256(plane.input).hexdigest()}  -\n".encode()


def test_an_agent_announces_that_it_passes_input_before_the_command_starts(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.assign(command=["true"], stdin=True)
    assert agent(plane).exit_code() == 0
    names = [name for name, _ in plane.calls]
    assert names.index("ack") < names.index("input") < names.index("result")
    assert plane.received("input")[0] == {"fence": 7, "taken": 0, "closed": False, "wait": 0}


def test_a_command_that_reads_slowly_is_not_sent_more_than_fits_on_the_way(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.input, plane.input_ends = bytes(5_000_000), True
    plane.assign(command=["sh", "-c", "until test -e go; do sleep 0.05; done; wc -c"], stdin=True)
    running = agent(plane)
    eventually(lambda: len(plane.received("input")) > 1, 30, "it asks")
    (running.work / "work" / "go").touch()
    assert running.exit_code() == 0
    assert running.output().split() == [b"5000000"]


def test_a_command_that_closes_its_stdin_is_reported_and_goes_on(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.input = bytes(5_000_000)
    plane.assign(command=["sh", "-c", "exec < /dev/null; until test -e go; do sleep 0.05; done; echo done"], stdin=True)
    running = agent(plane)
    eventually(lambda: plane.received("input")[-1:] and plane.received("input")[-1]["closed"], 30, "it was reported")
    (running.work / "work" / "go").touch()
    assert running.exit_code() == 0
    assert running.output() == b"done\n"


def test_a_command_without_stdin_reads_an_empty_input_and_none_is_asked_for(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.input = b"not for this command"
    plane.assign(command=["cat"])
    running = agent(plane)
    assert running.exit_code() == 0
    assert (running.output(), plane.received("input")) == (b"", [])


def test_a_claim_that_ends_while_its_command_waits_for_input_is_stopped(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.assign(command=["cat"], stdin=True)
    running = agent(plane)
    eventually(lambda: len(plane.received("input")) > 1, 30, "it asks")
    plane.end()
    assert running.exit_code() == 0
