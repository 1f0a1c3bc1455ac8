"""A person's first hour as a script: every shell and Python example of the documents runs, also in a terminal of 80 columns.

What cannot run here is listed with its reason in tests/docs/not_run.toml.
"""

import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented_terminal import Running, Terminal

from demos import own_folder
from documented import ROOT, Command, Example, commands, programs, reason_not_to_run
from fleet import eventually, free_ports

FLEET = "holdfast up -f examples/pools.yaml"
# Commands that go on until Ctrl-C, and what they print when they have begun.
GO_ON = {
    "holdfast up ": "Holdfast is up on",
    "holdfast top": "linux",
    "holdfast get events -w": "claim.ended",
    "holdfast claim --pool notebook --tenant acme --hold": "holding w-",
}
CODES = {
    "holdfast brake release": 1,
    "holdfast get events -w": 130,
    "holdfast run --pool linux --env CI=1": 3,
}  # the others exit with 0
TABLES = ("holdfast get pools ", "holdfast doctor", "holdfast token list", "holdfast recover ")
# The names that the text around a Python example explains: the token, and a loop with something to do.
GIVEN = """
from pathlib import Path
token = Path(".holdfast/token").read_text().strip()
turns = iter([True, True, False])
work = lambda: next(turns)
"""
FIRST = ("README.md", "docs/pools.md", "docs/cli.md")
LAST = "docs/backup-and-restore.md"  # because its commands stop the fleet


def to_run(*, last: bool = False) -> list[Command]:
    """Returns the commands in the order in which a person reads."""
    found = [each for each in commands() if reason_not_to_run(each) is None and not each.text.startswith(FLEET)]
    chosen = (each for each in found if (each.document == LAST) == last)
    return sorted(chosen, key=lambda each: FIRST.index(each.document) if each.document in FIRST else len(FIRST))


class Home:
    """A folder with the examples of the repository, and the fleet that the README starts in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_ports(1)[0]
        shutil.copytree(ROOT / "examples", folder / "examples")
        shutil.copy(ROOT / "examples" / "pools.yaml", folder / "pools.yaml")
        (folder / "tenants").mkdir()
        shutil.copy(ROOT / "examples" / "tenants.yaml", folder / "tenants")
        self.fleet: Running

    def up(self) -> None:
        self.fleet = Terminal(self.folder, self.port).start(f"{FLEET} --port {self.port}")
        self.fleet.until("Holdfast is up on")

    def down(self) -> None:
        self.fleet.interrupt()
        assert self.fleet.ended() == 0, self.fleet.output


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    assert [each for each in commands() if each.text.startswith(FLEET)], "the README shows how to start this fleet"
    with own_folder() as folder:
        made = Home(folder)
        made.up()
        yield made


def do(terminal: Terminal, command: Command) -> str:
    """Runs one command as documented, and returns its output."""
    text = command.text.replace("/var/lib/holdfast/data", f"{terminal.home}/other")
    if text.startswith("holdfast up "):
        text = text.replace("holdfast up ", f"holdfast up --port {free_ports(1)[0]} ")
    begun = next((shown for start, shown in GO_ON.items() if text.startswith(start)), None)
    running = terminal.start(text, watched=begun is not None)
    if begun is not None:
        running.until(begun)
        running.interrupt()
    expected = next((code for start, code in CODES.items() if text.startswith(start)), 0)
    assert running.ended() == expected, f"{command.document}:{command.line}: {text}\n{running.output}"
    assert "urn:holdfast:" not in running.output, f"{command.document}:{command.line}: refused\n{running.output}"
    terminal.seen += running.output
    return running.output


def test_every_shell_example_runs(home: Home) -> None:
    terminal = Terminal(home.folder, home.port)
    shown = {command: do(terminal, command) for command in to_run()}
    output = "".join(shown.values())
    assert re.search(r"^hello from c-\w+$", output, re.MULTILINE)
    assert "the exit code is 1, because they differ" in output
    assert "it ended with 3" in output
    assert '"outcome":"failed"' in output
    assert "Traceback" not in output
    assert "this is a bug" not in output


def test_every_shell_example_runs_in_a_terminal_of_80_columns(home: Home) -> None:
    terminal = Terminal(home.folder, home.port, columns=80)
    for command in to_run():
        output = do(terminal, command)
        assert "Traceback" not in output
        if command.text.startswith(TABLES) and " -o " not in command.text:
            assert output.strip(), command
            assert [line for line in output.splitlines() if len(line) > 80] == [], command


@pytest.mark.parametrize("program", programs(), ids=lambda each: f"{each.document}:{each.line}")
def test_every_python_example_runs(home: Home, program: Example) -> None:
    terminal = Terminal(home.folder, home.port)
    text = terminal.filled(program.text)
    if "async " in text:
        text = f"import asyncio\nasync def main():\n{textwrap.indent(text, '    ')}\nasyncio.run(main())\n"
    ran = subprocess.run([sys.executable, "-c", GIVEN + text], cwd=home.folder, env=terminal.env, capture_output=True, text=True)
    assert ran.returncode == 0, f"{program.document}:{program.line}\n{ran.stderr}"


def test_the_backup_in_the_documents_can_be_restored() -> None:
    """The commands of backup-and-restore.md in their order: a copy of the running fleet, the restore while it is stopped."""
    backup, restore, *others = to_run(last=True)
    with own_folder() as folder:
        home = Home(folder)
        home.up()
        (folder / "backup").mkdir()

        def paths(command: Command) -> Command:
            text = command.text.replace("/var/lib/holdfast/data", f"{folder}/.holdfast").replace("/backup/", f"{folder}/backup/")
            return command._replace(text=text)

        terminal = Terminal(folder, home.port)
        do(terminal, paths(backup))
        home.down()
        do(terminal, paths(restore))
        home.up()
        for command in others:
            do(terminal, command)
        shown = Command(LAST, 0, "holdfast get pools linux")
        eventually(lambda: "linux" in do(terminal, shown), 30, "the pool is still known")
