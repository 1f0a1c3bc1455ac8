"""The command line finds the fleet of its folder on any port, writes an example file, and says when nothing answers."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast
from terminals import Terminal

from holdfast.cli.delay import CLEAR
from holdfast.client import NotConfigured
from holdfast.client.context import Context, Contexts, contexts_file, resolve, write_contexts
from served_api import Stage


def data_dir(folder: Path, *sockets: str, urls: tuple[str, ...] = (), token: str = TOKEN) -> Path:
    """Writes what `holdfast up` writes to its data directory."""
    folder.mkdir()
    (folder / "token").write_text(f"{token}\n")
    (folder / "sockets").write_text("".join(f"{each}\n" for each in sockets))
    (folder / "servers").write_text("".join(f"{each}\n" for each in urls))
    return folder


@pytest.fixture
def alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Returns the command line without a server in its environment."""
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.delenv("HOLDFAST_TOKEN")
    return cli


def test_a_command_finds_the_fleet_of_its_folder_on_any_port(alone: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    server.pools["linux"] = {"name": "linux"}
    nowhere = alone("get", "pools")
    assert (nowhere.code, "no server is known here" in nowhere.err) == (1, True)
    data_dir(tmp_path / ".holdfast", *server.sockets)
    assert "linux" in alone("get", "pools").out
    server.kill(0)
    assert "linux" in alone("get", "pools").out, "the other replica answers"


def test_a_command_takes_the_data_directory_that_an_option_or_the_environment_names(
    alone: Cli, server: FakeHoldfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pools["linux"] = {"name": "linux"}
    data_dir(tmp_path / ".holdfast", "unix:///nowhere")
    data = data_dir(tmp_path / "other", *server.sockets)
    assert "linux" in alone("--data-dir", str(data), "get", "pools").out
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(data))
    assert "linux" in alone("get", "pools").out
    result = alone("--data-dir", str(tmp_path / "none"), "get", "pools")
    assert (result.code, "has no fleet of yours" in result.err) == (1, True)
    assert alone("--data-dir", str(data), "--context", "prod", "get", "pools").code == 2


def test_the_token_of_a_local_fleet_is_sent_to_its_replicas_only(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    sockets, urls = ("unix:///a/7081.sock", "unix:///a/7082.sock"), ("http://127.0.0.1:7081", "http://127.0.0.1:7082")
    data = data_dir(tmp_path / ".holdfast", *sockets, urls=urls, token="local")
    assert resolve(env=env, folder=tmp_path).url == ",".join(sockets)
    for address in (urls[1], sockets[1]):
        assert resolve(address, env=env, folder=tmp_path) == Context(url=address, token="local"), "the user names it"
    with pytest.raises(NotConfigured, match=r"no token for http://127\.0\.0\.1:7083"):
        resolve("http://127.0.0.1:7083", env=env, folder=tmp_path)
    elsewhere = {**env, "HOLDFAST_URL": "http://elsewhere", "HOLDFAST_TOKEN": "another"}
    assert resolve(env=elsewhere, folder=tmp_path).token == "another"
    named = resolve(data_dir=data, env=elsewhere, folder=tmp_path)
    assert (named.url.split(",")[0], named.token) == (sockets[0], "local")


def test_a_token_of_the_environment_is_not_sent_to_a_server_that_a_folder_names(
    alone: Cli, server: FakeHoldfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an unpacked archive or a cloned repository with a data directory could collect the user's token."""
    server.pools["linux"] = {"name": "linux"}
    data = data_dir(tmp_path / ".holdfast", *server.sockets)
    monkeypatch.setenv("HOLDFAST_TOKEN", "a token of production")
    assert "linux" in alone("get", "pools").out, "the server accepts only the folder's token"
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(data))
    assert "linux" in alone("get", "pools").out
    monkeypatch.delenv("HOLDFAST_DATA_DIR")
    stored = Contexts(contexts={"test": Context(url=",".join(server.sockets), token="a token of test")})
    write_contexts(contexts_file(), stored)
    assert "linux" in alone("get", "pools").out, "nor is a stored token for the same address sent"
    assert alone("--token", "wrong", "get", "pools").code == 1, "a token that the user gives with the command is sent"


@pytest.mark.parametrize("address", ["http://evil.example:7070", "http://127.0.0.1:7070", "unix://host/path", "evil"])
def test_a_data_directory_leads_to_sockets_only(tmp_path: Path, address: str) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "HOLDFAST_TOKEN": "a token of production"}
    data = data_dir(tmp_path / ".holdfast", "unix:///a/7070.sock", address, token="local")
    for given in ({}, {"data_dir": data}):
        with pytest.raises(NotConfigured, match="is not the address of a socket"):
            resolve(env=env, folder=tmp_path, **given)
    assert resolve("https://prod", env=env, folder=tmp_path) == Context(url="https://prod", token="a token of production")


def test_the_token_of_a_fleet_that_does_not_run_is_sent_nowhere(tmp_path: Path) -> None:
    """Another user may listen on the port of a fleet that was stopped."""
    data = data_dir(tmp_path / ".holdfast", urls=("http://127.0.0.1:7070",), token="local")
    for given in ({}, {"data_dir": data}):
        with pytest.raises(NotConfigured, match=r"its fleet does not run.*--url"):
            resolve(env={"XDG_CONFIG_HOME": str(tmp_path)}, folder=tmp_path, **given)


def environment(home: Path, url: str) -> dict[str, str]:
    return {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": TOKEN, "XDG_CONFIG_HOME": str(home)}


def silent_port() -> socket.socket:
    """Returns a listening socket that never accepts: a replica that is stopped, or a host that answers nothing."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    return listening


def test_a_person_sees_a_spinner_while_no_replica_answers_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    with silent_port() as port:
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        with Terminal("get", "pools", env=environment(tmp_path, url)) as terminal:
            terminal.shows(f"/ no replica answered at {url}; trying again, Ctrl-C stops", within=8)  # a try fails after 10 s
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.ends() == 130
            assert terminal.raw.endswith(CLEAR), "the spinner is removed"


def test_the_spinner_is_removed_when_a_replica_answers(server: FakeHoldfast, tmp_path: Path) -> None:
    server.pools["linux"] = {"name": "linux"}
    with silent_port() as port:
        urls = f"http://127.0.0.1:{port.getsockname()[1]},{server.url}"
        with Terminal("get", "pools", env=environment(tmp_path, urls)) as terminal:
            assert terminal.ends() == 0
            waited, answer = terminal.raw.rsplit(CLEAR, 1)
    assert "/ no replica answered at " + urls.replace(",", ", ") in waited
    assert "linux" in answer


def test_a_script_gets_one_line_and_code_1_when_no_replica_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "get", "pools"],
        env={**os.environ, **environment(tmp_path, "http://127.0.0.1:1")}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    first, last = done.stderr.splitlines()
    assert first == "no replica answered at http://127.0.0.1:1; trying again"
    assert last == "holdfast: no replica answered: http://127.0.0.1:1: Connection refused"


def test_init_writes_an_example_that_apply_accepts_and_never_replaces_a_file(real_cli: Cli, stage: Stage, tmp_path: Path) -> None:
    assert real_cli("init").out.startswith("wrote holdfast.yaml; try: holdfast up -f holdfast.yaml")
    text = (tmp_path / "holdfast.yaml").read_text()
    assert len(re.findall(r"(?m)#", text)) > 15
    assert real_cli("apply", "-f", "holdfast.yaml").code == 0
    assert {"jobs", "sessions"} <= {each["name"] for each in stage.ask("GET", "/v1/pools").json["items"]}
    (tmp_path / "holdfast.yaml").write_text("mine")
    result = real_cli("init")
    assert (result.code, "exists already and was not changed" in result.err) == (1, True)
    assert (tmp_path / "holdfast.yaml").read_text() == "mine"
    assert real_cli("init", "other.yaml").code == 0
    assert "holdfast apply -f other.yaml" in (tmp_path / "other.yaml").read_text()
