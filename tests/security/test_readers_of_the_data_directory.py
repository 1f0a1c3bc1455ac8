"""No other user of the machine can read the files of a fleet: its key, its admin token, its workers."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from other_user import as_nobody, needs_root

from holdfast.cli.main import main
from holdfast.local.diagnose import diagnose
from holdfast.local.layout import Layout
from holdfast.postgres.binaries import Account
from holdfast.postgres.server_files import let_through
from holdfast.up import Plan


@pytest.fixture
def root() -> Iterator[Path]:
    """Returns a data directory as the release before made it: open, with a list of servers that everybody can read."""
    home = Path(mkdtemp(prefix="hf-"))
    home.chmod(0o755)
    root = home / "data"
    root.mkdir()
    root.chmod(0o755)
    (root / "servers").write_text("http://127.0.0.1:7070\n")
    (root / "token").write_text("secret\n")
    for file in root.iterdir():
        file.chmod(0o644)
    yield root
    shutil.rmtree(home)


@needs_root
def test_another_user_reads_nothing_after_the_next_start(root: Path) -> None:
    assert as_nobody((root / "token").read_text) == "secret\n"
    layout = Layout(root)
    assert sorted(layout.ensure()) == ["data", "servers", "token"]
    assert layout.ensure() == [], "there is nothing left to close"
    for name in ("token", "key", "servers"):
        assert as_nobody((root / name).read_text) == "PermissionError"
    root.chmod(0o711)
    for name in ("token", "key", "servers"):
        assert as_nobody((root / name).read_text) == "PermissionError", "the files are private by themselves as well"


def test_every_file_is_made_private(root: Path) -> None:
    layout = Layout(root.with_name("new"))
    layout.ensure()
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in layout.root.iterdir()} == {0o600}


@needs_root
def test_postgres_gets_through_to_its_own_folder_and_sees_nothing_else(root: Path) -> None:
    layout = Layout(root)
    layout.ensure()
    (root / "postgres").mkdir(mode=0o700)
    (root / "postgres" / "file").write_text("its own\n")
    for path in (root / "postgres", root / "postgres" / "file"):
        os.chown(path, 65534, 65534)
    assert as_nobody((root / "postgres" / "file").read_text) == "PermissionError"
    let_through(root, Account(65534, 65534))
    assert stat.S_IMODE(root.stat().st_mode) == 0o710
    layout.ensure()
    assert as_nobody((root / "postgres" / "file").read_text) == "its own\n", "a start of a replica does not lock Postgres out"
    assert as_nobody(lambda: os.listdir(root)) == "PermissionError"
    assert as_nobody((root / "token").read_text) == "PermissionError"
    stranger = root.with_name("somebody's")
    stranger.mkdir(mode=0o700)
    let_through(stranger, Account(65534, 65534))
    assert stat.S_IMODE(stranger.stat().st_mode) == 0o700, "only a fleet's own directory is opened"


def test_doctor_names_files_that_others_can_read_and_addresses_that_others_can_reach(root: Path) -> None:
    files, addresses = diagnose(root)
    assert (files.ok, "data, servers, token" in files.detail) == (False, True)
    assert addresses.ok
    Layout(root).ensure()
    (root / "servers").write_text(
        "http://127.0.0.1:1\nhttp://[::1]:2\nhttp://localhost:3\nhttp://0.0.0.0:4\nhttp://[fd00::5]:5\n"
    )
    files, addresses = diagnose(root)
    assert files.ok
    assert not addresses.ok
    assert "reach http://0.0.0.0:4, http://[fd00::5]:5," in addresses.detail


@pytest.mark.parametrize("command", ["up", "serve"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.test"])
def test_listening_beyond_this_machine_is_refused(
    command: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DSN", "postgresql://nobody@/none")
    with pytest.raises(SystemExit) as ended:
        main([command, "--host", host, "--data-dir", str(tmp_path / "data")])
    assert ended.value.code == 2
    assert f"--host {host}: other machines could reach it" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_an_address_of_ipv6_is_written_with_brackets(tmp_path: Path) -> None:
    assert Plan(tmp_path, host="::1", replicas=2).urls == ["http://[::1]:7070", "http://[::1]:7071"]
