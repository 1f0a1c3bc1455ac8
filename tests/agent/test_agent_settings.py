"""The settings that an agent reads from its environment: defaults, limits, and an error that names the wrong setting."""

import os
from pathlib import Path

import pytest

from holdfast.agent.config import BadConfig, Config, from_environment


def env(folder: Path, **more: str) -> dict[str, str]:
    (folder / "token").write_text("  bootstrap-1\n")
    known = {
        "HOLDFAST_WORKER": "w-1",
        "HOLDFAST_POD_UID": "uid-1",
        "HOLDFAST_WORKER_DIR": str(folder / "worker"),
        "HOLDFAST_TOKEN_FILE": str(folder / "token"),
        "HOLDFAST_SERVERS": "http://one:1, https://two:2/ ",
    }
    return {key: value for key, value in (known | more).items() if value != "unset"}


def refused(folder: Path, **more: str) -> str:
    with pytest.raises(BadConfig) as caught:
        from_environment(env(folder, **more))
    return str(caught.value)


def test_what_is_not_set_has_its_default(tmp_path: Path) -> None:
    assert from_environment(env(tmp_path)) == Config(
        worker="w-1",
        uid="uid-1",
        token_file=tmp_path / "token",
        servers_file=None,
        servers=("http://one:1", "https://two:2"),
        folder=tmp_path / "worker",
        outputs=tmp_path / "worker" / "output",
        lonely=600.0,
        bind="127.0.0.1",
        port=0,
        advertise="127.0.0.1",
        stage=None,
        termination=None,
    )


def test_what_is_set_is_taken_without_the_space_around_it(tmp_path: Path) -> None:
    (tmp_path / "servers").write_text("# replicas\n\n http://one:1/ \nhttp://two:2\n")
    config = from_environment(
        env(
            tmp_path,
            HOLDFAST_WORKER=" w-2 ",
            HOLDFAST_POD_UID=" uid-2 ",
            HOLDFAST_WORKER_DIR=f" {tmp_path}/elsewhere ",
            HOLDFAST_TOKEN_FILE=f" {tmp_path}/token ",
            HOLDFAST_SERVERS_FILE=f" {tmp_path}/servers ",
            HOLDFAST_OUTPUT_DIR=f" {tmp_path}/out ",
            HOLDFAST_LONELY_SECONDS=" 12.5 ",
            HOLDFAST_BIND=" 0.0.0.0 ",
            HOLDFAST_PORT=" 65535 ",
            HOLDFAST_ADVERTISE=" 10.0.0.7 ",
            HOLDFAST_STAGE=f" {tmp_path}/stage ",
            HOLDFAST_TERMINATION=f" {tmp_path}/log ",
        )
    )
    assert (config.worker, config.uid, config.folder, config.outputs) == (
        "w-2",
        "uid-2",
        tmp_path / "elsewhere",
        tmp_path / "out",
    )
    assert (config.lonely, config.bind, config.port, config.advertise) == (12.5, "0.0.0.0", 65_535, "10.0.0.7")
    assert (config.stage, config.termination) == (tmp_path / "stage", tmp_path / "log")
    assert (config.servers_file, config.servers) == (tmp_path / "servers", ()), "the file goes before the list"
    assert config.read_servers() == ("http://one:1", "http://two:2")
    assert config.read_token() == "bootstrap-1"


def test_paths_are_made_absolute_because_commands_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = env(tmp_path)
    (tmp_path / "servers").write_text("http://one:1")
    monkeypatch.chdir(tmp_path)
    relative = {
        "HOLDFAST_WORKER_DIR": "w",
        "HOLDFAST_TOKEN_FILE": "token",
        "HOLDFAST_SERVERS_FILE": "servers",
        "HOLDFAST_OUTPUT_DIR": "out",
        "HOLDFAST_STAGE": "stage",
    }
    config = from_environment(settings | relative)
    paths = (config.folder, config.token_file, config.servers_file, config.outputs, config.stage)
    assert paths == tuple(tmp_path / name for name in ("w", "token", "servers", "out", "stage"))


@pytest.mark.parametrize("name", ["HOLDFAST_WORKER", "HOLDFAST_POD_UID", "HOLDFAST_WORKER_DIR", "HOLDFAST_TOKEN_FILE"])
@pytest.mark.parametrize("value", ["unset", "", "  "])
def test_a_setting_that_is_needed_is_named(tmp_path: Path, name: str, value: str) -> None:
    assert refused(tmp_path, **{name: value}) == f"{name} is not set"


@pytest.mark.parametrize("value", ["unset", "", "  "])
def test_servers_are_needed_one_way_or_the_other(tmp_path: Path, value: str) -> None:
    assert "neither HOLDFAST_SERVERS_FILE nor HOLDFAST_SERVERS" in refused(tmp_path, HOLDFAST_SERVERS=value)


@pytest.mark.parametrize("url", ["one:1", "ftp://one:1", "http://", "http://one:0", "http://one:99999", "http://[", "//one"])
def test_a_server_has_an_http_address(tmp_path: Path, url: str) -> None:
    message = refused(tmp_path, HOLDFAST_SERVERS=f"http://good:1,{url}")
    assert message == f"HOLDFAST_SERVERS: {url.rstrip('/')!r} is not an http://, https:// or unix:// address"


@pytest.mark.parametrize("listed", [",", "#http://one:1", " # , "])
def test_a_list_without_a_server_is_refused(tmp_path: Path, listed: str) -> None:
    assert refused(tmp_path, HOLDFAST_SERVERS=listed) == "HOLDFAST_SERVERS names no server"


def test_a_file_of_servers_is_read_at_the_start_and_again_whenever_asked(tmp_path: Path) -> None:
    file = tmp_path / "servers"
    assert refused(tmp_path, HOLDFAST_SERVERS_FILE=str(file)) == f"HOLDFAST_SERVERS_FILE: {file}: No such file or directory"
    file.write_bytes(b"\xff\xfe")
    assert refused(tmp_path, HOLDFAST_SERVERS_FILE=str(file)).startswith("HOLDFAST_SERVERS_FILE: 'utf-8'")
    file.write_text("http://one:1")
    config = from_environment(env(tmp_path, HOLDFAST_SERVERS_FILE=str(file)))
    file.write_text("http://two:2")
    assert config.read_servers() == ("http://two:2",)
    file.write_text("")
    assert config.read_servers() == (), "all replicas have left, and may come back"


@pytest.mark.parametrize("token", ["", "  \n", "two\nlines", "tökén"])
def test_a_token_is_one_line_of_ascii(tmp_path: Path, token: str) -> None:
    settings = env(tmp_path)
    (tmp_path / "token").write_text(token)
    with pytest.raises(BadConfig, match=r"HOLDFAST_TOKEN_FILE: .* holds no token"):
        from_environment(settings)


def test_a_token_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refused(tmp_path, HOLDFAST_TOKEN_FILE=str(missing)) == f"HOLDFAST_TOKEN_FILE: {missing}: No such file or directory"
    settings = env(tmp_path)
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(BadConfig, match=r"^HOLDFAST_TOKEN_FILE: 'utf-8'"):
        from_environment(settings)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_a_wildcard_is_no_address_to_send_holders_to(tmp_path: Path, bind: str) -> None:
    assert "set HOLDFAST_ADVERTISE" in refused(tmp_path, HOLDFAST_BIND=bind)
    assert "set HOLDFAST_ADVERTISE" in refused(tmp_path, HOLDFAST_ADVERTISE=bind)
    assert from_environment(env(tmp_path, HOLDFAST_BIND=bind, HOLDFAST_ADVERTISE="10.0.0.7")).bind == bind


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOLDFAST_PORT", "65536", "it must be at least 0 and at most 65535"),
        ("HOLDFAST_PORT", "-1", "it must be at least 0 and at most 65535"),
        ("HOLDFAST_PORT", "http", "which is not a number"),
        ("HOLDFAST_LONELY_SECONDS", "-0.1", "it must be at least 0"),
        ("HOLDFAST_LONELY_SECONDS", "nan", "it must be at least 0"),
        ("HOLDFAST_LONELY_SECONDS", "soon", "which is not a number"),
    ],
)
def test_a_number_out_of_its_limits_is_named(tmp_path: Path, name: str, value: str, expected: str) -> None:
    message = refused(tmp_path, **{name: value})
    assert message.startswith(f"{name} is {value!r}")
    assert message.endswith(expected)


@pytest.mark.parametrize(
    ("name", "value"), [("HOLDFAST_PORT", "0"), ("HOLDFAST_LONELY_SECONDS", "0"), ("HOLDFAST_LONELY_SECONDS", "inf")]
)
def test_a_number_at_its_limit_is_taken(tmp_path: Path, name: str, value: str) -> None:
    config = from_environment(env(tmp_path, **{name: value}))
    assert (config.port if name == "HOLDFAST_PORT" else config.lonely) == float(value)


def test_the_folders_are_made_for_the_agent_alone(tmp_path: Path) -> None:
    config = from_environment(env(tmp_path, HOLDFAST_OUTPUT_DIR=f"{tmp_path}/deep/out"))
    for folder in (config.folder / "work", config.outputs):
        assert folder.stat().st_mode & 0o777 == 0o700
    again = from_environment(env(tmp_path, HOLDFAST_OUTPUT_DIR=f"{tmp_path}/deep/out"))
    assert again == config, "a second start finds them there"


@pytest.mark.parametrize(("name", "below"), [("HOLDFAST_WORKER_DIR", "/work"), ("HOLDFAST_OUTPUT_DIR", "")])
def test_a_folder_that_cannot_be_made_or_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, below: str
) -> None:
    (tmp_path / "file").write_text("")
    assert refused(tmp_path, **{name: f"{tmp_path}/file/x"}).startswith(f"{name}: {tmp_path}/file/x")
    asked: list[tuple[str, int]] = []

    def access(path: Path, mode: int) -> bool:
        asked.append((str(path), mode))
        return str(path) != f"{tmp_path}/closed{below}"

    monkeypatch.setattr(os, "access", access)
    assert refused(tmp_path, **{name: f"{tmp_path}/closed"}) == f"{name}: cannot write to {tmp_path}/closed{below}"
    assert asked[-1][1] == os.W_OK | os.X_OK


def test_settings_are_a_frozen_value_that_is_made_by_names() -> None:
    assert Config.__struct_config__.frozen
    with pytest.raises(TypeError, match="positional"):
        Config("w-1")  # type: ignore[misc]
