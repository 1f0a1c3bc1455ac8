"""The shell completes pools, states and ids, in a bounded time, and proposes nothing when no fleet answers."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast

from holdfast.client.context import Context, Contexts, contexts_file, write_contexts
from waiting import Deadline

HOLDFAST = Path(sys.executable).with_name("holdfast")


@pytest.fixture
def env(server: FakeHoldfast, tmp_path: Path) -> dict[str, str]:
    server.pools |= {name: {"name": name, "state": "live"} for name in ("linux", "large", "mac")}
    server.claims |= {name: {"id": name, "state": "active"} for name in ("c-1", "c-2")}
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    prod = Context(url="https://prod", token="a token of prod")
    write_contexts(contexts_file(env), Contexts(contexts={"prod": prod}))
    return {**os.environ, "HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": TOKEN, "XDG_CONFIG_HOME": str(tmp_path)}


def proposed(env: dict[str, str], *words: str) -> list[str]:
    """Returns what the shell gets for the last word."""
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_HOLDFAST_COMPLETE": "complete_bash"}
    done = subprocess.run([HOLDFAST], env=env | asked, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(("words", "expected"), [
    (("run", "--pool", "l"), ["linux", "large"]),
    (("freeze", ""), ["linux", "large", "mac"]),
    (("get", "pools", "m"), ["mac"]),
    (("explain", "pool", "m"), ["mac"]),
    (("explain", "claim", ""), ["c-2", "c-1"]),
    (("logs", "c-"), ["c-2", "c-1"]),
    (("logs", ""), ["c-2", "c-1"]),
    (("get", "claims", "--state", "a"), ["assigned", "active"]),
    (("get", "workers", "--state", "w"), ["warm"]),
    (("wait", "c-1"), ["c-1"]),
    (("--context", "p"), ["prod"]),
    (("logout", ""), ["prod"]),
    (("get", "po"), ["pools"]),
    (("free",), ["freeze"]),
])  # fmt: skip
def test_tab_proposes_pools_states_and_ids(env: dict[str, str], words: tuple[str, ...], expected: list[str]) -> None:
    assert proposed(env, "holdfast", *words) == expected


def test_tab_uses_the_options_of_the_line(env: dict[str, str], server: FakeHoldfast) -> None:
    assert proposed(env | {"HOLDFAST_URL": "http://127.0.0.1:1"}, "holdfast", "--url", server.url, "freeze", "ma") == ["mac"]


def test_tab_proposes_nothing_and_soon_when_no_fleet_answers(env: dict[str, str]) -> None:
    with socket.socket() as port:  # it never accepts
        port.bind(("127.0.0.1", 0))
        port.listen()
        for url in (f"http://127.0.0.1:{port.getsockname()[1]}", "http://127.0.0.1:1", "not an address"):
            deadline = Deadline(10)  # a second for the answer, and the start of the interpreter
            assert proposed(env | {"HOLDFAST_URL": url}, "holdfast", "freeze", "") == []
            assert not deadline.over()
    assert proposed(env | {"HOLDFAST_TOKEN": "wrong"}, "holdfast", "freeze", "") == []


def test_tab_does_not_send_a_token_of_the_environment_to_a_server_that_the_folder_names(
    env: dict[str, str], server: FakeHoldfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / ".holdfast"
    data.mkdir()
    (data / "sockets").write_text(f"{server.sockets[0]}\n")
    (data / "token").write_text("a token of the folder\n")
    del env["HOLDFAST_URL"]
    assert proposed(env, "holdfast", "freeze", "ma") == [], "the server accepts only the environment's token"
    (data / "token").write_text(f"{TOKEN}\n")
    assert proposed(env | {"HOLDFAST_TOKEN": "a token of production"}, "holdfast", "freeze", "ma") == ["mac"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_the_shell_accepts(cli: Cli, tmp_path: Path, shell: str) -> None:
    script = cli("completion", shell)
    assert script.code == 0
    assert "_HOLDFAST_COMPLETE=complete_" in script.out
    if shutil.which(shell):
        (tmp_path / "script").write_text(script.out)
        done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_a_pool_after_the_script_is_loaded(env: dict[str, str]) -> None:
    line = f"""
        PATH={HOLDFAST.parent}:$PATH
        eval "$(holdfast completion bash)"
        COMP_WORDS=(holdfast freeze ma) COMP_CWORD=2
        _holdfast_completion holdfast
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", line], env=env, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("mac", "")
