"""Contexts are stored so that only their user can read them, and a token is sent only to its own server."""

import json
import stat
from pathlib import Path

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast

from holdfast.client import NotConfigured
from holdfast.client.context import Context, Contexts, contexts_file, resolve, write_contexts


def test_login_asks_the_server_and_keeps_the_file_private(
    cli: Cli, server: FakeHoldfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.delenv("HOLDFAST_TOKEN")
    result = cli("login", server.url, "--token", TOKEN, "--name", "prod")
    assert result.out == f"logged in to {server.url} as admin 'root'; context 'prod' is now in use\n"
    file = tmp_path / "config" / "holdfast" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert cli("get", "pools", "-o", "json").code == 0
    assert cli("login", "--list").out == f"* prod  {server.url}\n"


def test_a_file_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "contexts.json"
    file.write_text("{}")
    file.chmod(0o644)
    write_contexts(file, Contexts())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_wrong_token_is_not_remembered_nor_shown(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    result = cli("login", server.url, "--token", "wr0ng-t0ken")
    assert result.code == 1
    assert "wr0ng-t0ken" not in result.err
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("denied", ["none", "admin"])
def test_if_the_server_does_not_serve_the_role_it_is_found_by_what_may_be_read(
    cli: Cli, server: FakeHoldfast, denied: str
) -> None:
    from fake_holdfast import problem

    async def forbidden(_: object) -> object:
        return problem(403, "forbidden", "not for you")

    server.role = None
    if denied == "admin":
        server.fail_next("GET", "/tokens", forbidden)  # type: ignore[arg-type]
    result = cli("login", server.url, "--token", TOKEN)
    assert f"as {'operator' if denied == 'admin' else 'admin'};" in result.out


def test_use_changes_the_context_and_an_unknown_one_is_named(cli: Cli, server: FakeHoldfast) -> None:
    cli("login", server.urls[0], "--token", TOKEN, "--name", "one")
    cli("login", server.urls[1], "--token", TOKEN, "--name", "two")
    assert cli("login", "--use", "one").out == f"using one ({server.urls[0]})\n"
    result = cli("login", "--use", "three")
    assert result.code == 1
    assert "no context 'three' (known: one, two)" in result.err


def test_logout_removes_the_token_from_this_machine(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        cli("login", server.urls[0], "--token", TOKEN, "--name", name)
    file = tmp_path / "config" / "holdfast" / "contexts.json"
    assert f"logged out of {server.urls[0]}; context 'three' is removed" in cli("logout").out
    assert cli("login", "--list").out == f"  one  {server.urls[0]}\n  two  {server.urls[0]}\n"
    assert (cli("logout").code, cli("logout", "none").code, cli("logout", "one", "--all").code) == (1, 1, 2)
    assert "context 'two' is removed" in cli("logout", "two").out
    assert cli("logout", "--all").code == 0
    assert TOKEN not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_whoami_shows_role_tenant_and_server(cli: Cli, server: FakeHoldfast) -> None:
    url = ",".join(server.urls)
    assert cli("whoami").out == f"admin 'root' at {url}\n"
    server.role = {"name": "ci", "role": "tenant", "tenant": "acme"}
    assert cli("whoami").out == f"tenant 'ci' of tenant 'acme' at {url}\n"
    shown = json.loads(cli("whoami", "-o", "json").out)
    assert shown == {"url": url, "role": "tenant", "name": "ci", "tenant": "acme"}
    refused = cli("--token", "wr0ng-t0ken", "whoami")
    assert (refused.code, "wr0ng-t0ken" in refused.err) == (1, False)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    prod = Context(url="https://prod", token="prod-token")
    other = Context(url="https://other", token="other-token")
    write_contexts(contexts_file(env), Contexts(current="prod", contexts={"prod": prod, "other": other}))
    return env


def test_the_order_is_arguments_named_environment_login(home: dict[str, str]) -> None:
    busy = {**home, "HOLDFAST_URL": "https://env", "HOLDFAST_TOKEN": "env-token"}
    found = [
        resolve(env=home),
        resolve(env=busy),
        resolve(context="other", env=busy),
        resolve("https://flag", "flag-token", env=busy),
        resolve("https://other", env=home),
    ]
    assert [(each.url, each.token) for each in found] == [
        ("https://prod", "prod-token"),
        ("https://env", "env-token"),
        ("https://other", "other-token"),
        ("https://flag", "flag-token"),
        ("https://other", "other-token"),
    ]


def test_a_stored_token_is_never_sent_to_another_address(home: dict[str, str]) -> None:
    with pytest.raises(NotConfigured, match="no token for https://elsewhere"):
        resolve("https://elsewhere", env=home)
    with pytest.raises(NotConfigured, match="no token for https://elsewhere"):
        resolve(env={**home, "HOLDFAST_URL": "https://elsewhere"})


def test_without_anything_the_fleet_on_this_machine_is_meant(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    with pytest.raises(NotConfigured, match="holdfast login"):
        resolve(env=env, folder=tmp_path)
    (tmp_path / ".holdfast").mkdir()
    (tmp_path / ".holdfast" / "token").write_text("local-token\n")
    (tmp_path / ".holdfast" / "sockets").write_text("unix:///a/7070.sock\n")
    found = resolve(env=env, folder=tmp_path)
    assert (found.url, found.token) == ("unix:///a/7070.sock", "local-token")
