"""A command, or what it starts, looks for the secrets of its claim in files. They are gone when the command has started."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.messages import Assignment
from holdfast.agent.staging import ASSIGNMENT, SCRIPT, stage

SECRET = "s3cret-that-nobody-finds"
AGENT, COMMAND = 65532, 1000  # two accounts without any rights
GIVEN = Assignment(
    claim="c-1", fence=7, tenant="acme", env={"COLOUR": "green"}, secrets={"KEY": SECRET}, payload=msgspec.Raw(b'{"n": 1}')
)
# What a curious command does: it prints its own variable, and every file that it can read.
LOOK = 'printf "%s" "$KEY" | wc -c; cat "$0"/*'


def test_no_file_shows_a_secret_once_the_command_runs(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    stage(folder, GIVEN, ["sh", "-c", LOOK, str(folder)])
    assert SECRET not in (folder / SCRIPT).read_text(), "the script is on disk as long as the pod"
    assert SECRET in (folder / ASSIGNMENT).read_text(), "an image without a shell reads it here"
    ended = subprocess.run(["/bin/sh", str(folder / SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split()[0] == str(len(SECRET)), "the command has it in its environment"
    assert SECRET not in ended.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text()] == []
    left = json.loads((folder / ASSIGNMENT).read_text())
    assert (left["claim"], left["env"], left["secrets"], left["payload"]) == ("c-1", {"COLOUR": "green"}, {}, {"n": 1})


def _as_agent(work: Callable[[], None]) -> None:
    """Does this in a process of the agent's user. It is a fork, because that user may not be able to read this interpreter."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(AGENT)
            os.setuid(AGENT)
            os.umask(0o077)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_another_user_erases_them_in_a_sticky_volume(tmp_path: Path) -> None:
    """The memory volume of a real node is a sticky folder of root. The agent and the command are two users there, and neither may
    remove a file of the other."""
    for parent in (tmp_path, *tmp_path.parents[:-1]):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o1777)
    folder = volume / "job"
    _as_agent(lambda: stage(folder, GIVEN, ["sh", "-c", LOOK, str(folder)]))
    assert (folder / SCRIPT).stat().st_uid == AGENT
    ended = subprocess.run(
        ["/bin/sh", str(folder / SCRIPT)],
        user=COMMAND, group=COMMAND, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split()[0] == str(len(SECRET))
    assert [path for path in volume.rglob("*") if path.is_file() and SECRET in path.read_text()] == []


def test_a_command_starts_also_where_nothing_can_be_erased(tmp_path: Path) -> None:
    """A template may mount the volume read-only a second time, for example. The secrets stay then, until the pod ends."""
    folder = tmp_path / "job"
    stage(folder, GIVEN, ["sh", "-c", "echo started"])
    script = (folder / SCRIPT).read_text().replace(f">{folder}", ">/proc/nowhere")
    ended = subprocess.run(
        ["/bin/sh"], input=script, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "started\n", "")
