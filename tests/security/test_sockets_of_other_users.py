"""No other user of the machine can connect to a replica's socket, or listen in its place."""

import os
import pwd
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from other_user import as_nobody, needs_root

from holdfast.client.errors import Unreachable
from holdfast.client.transport import Transport
from holdfast.local import addresses
from holdfast.local.layout import Layout
from holdfast.unix_socket import PATH_MAX, NotPrivate, check_private, to_path, to_url


def connect(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    return "connected"


@pytest.fixture
def layout() -> Iterator[Layout]:
    """Returns a data directory below folders that every user can enter, so that only its own mode protects it."""
    home = Path(mkdtemp(prefix="hf-"))
    home.chmod(0o755)
    layout = Layout(home / "data")
    layout.ensure()
    yield layout
    shutil.rmtree(home)


@needs_root
@pytest.mark.parametrize("long", [False, True])
def test_another_user_cannot_connect_to_the_socket(layout: Layout, long: bool) -> None:
    if long:
        layout = Layout(layout.root / ("long" * 30))
        layout.ensure()
    path = addresses.socket_of(layout, 7070)
    assert len(os.fsencode(path)) <= PATH_MAX
    assert path.is_relative_to(layout.root) != long
    with addresses.listen(path):
        assert addresses.listens(path), "its owner can connect"
        layout.root.chmod(0o711)  # even if the data directory were open
        assert as_nobody(lambda: connect(path)) == "PermissionError"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.unlink()
    path.parent.rmdir()


@needs_root
def test_a_folder_that_another_user_made_in_place_of_ours_is_refused(layout: Layout) -> None:
    """An attacker may make the folder first, because its name below /tmp can be computed."""
    path = addresses.socket_of(layout, 7070)
    path.parent.mkdir(mode=0o700)
    os.chown(path.parent, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(NotPrivate, match="belongs to uid"):
        addresses.listen(path)
    with pytest.raises(NotPrivate):
        addresses.plan(layout, {7070: "http://127.0.0.1:7070"})


async def test_a_command_sends_nothing_to_a_socket_in_a_folder_that_others_can_enter(layout: Layout) -> None:
    path = addresses.socket_of(layout, 7070)
    with addresses.listen(path):
        path.parent.chmod(0o755)
        transport = Transport(to_url(path), "token", patience=0.0)
        with pytest.raises(Unreachable, match="must be a folder with mode 0700"):
            await transport.request("GET", "/v1/pools")
        await transport.close()
    with pytest.raises(NotPrivate):
        check_private(path.parent)


def test_a_socket_that_a_crash_left_behind_is_replaced_and_its_address_removed(layout: Layout) -> None:
    one, two = (addresses.socket_of(layout, port) for port in (7070, 7071))
    crashed = addresses.listen(two)
    addresses.announce(layout, 7071, "http://127.0.0.1:7071")
    crashed.close()
    assert two.exists()
    assert not addresses.listens(two)
    with addresses.listen(one):
        addresses.announce(layout, 7070, "http://127.0.0.1:7070")
        assert layout.sockets.read_text() == f"{to_url(one)}\n"
        assert layout.servers.read_text() == "http://127.0.0.1:7070\n", "nor do agents of the release before go there"
        with addresses.listen(two):
            addresses.announce(layout, 7071, "http://127.0.0.1:7071")
            assert layout.sockets.read_text().split() == [to_url(two), to_url(one)]
            addresses.withdraw(layout, 7071, "http://127.0.0.1:7071")
        assert layout.sockets.read_text() == f"{to_url(one)}\n"
        assert not two.exists(), "a replica that leaves removes its socket"


def test_up_removes_what_earlier_replicas_left_and_keeps_a_replica_beside_it(layout: Layout) -> None:
    own, beside, old = (addresses.socket_of(layout, port) for port in (7070, 7078, 7079))
    addresses.listen(old).close()
    layout.servers.write_text("http://127.0.0.1:7079\nhttp://127.0.0.1:7078\n")
    with addresses.listen(beside):
        addresses.plan(layout, {7070: addresses.http_url("::1", 7070)})
        assert addresses.listens(beside)
    assert not old.exists()
    assert layout.servers.read_text() == "http://[::1]:7070\nhttp://127.0.0.1:7078\n"
    assert layout.sockets.read_text().split() == [to_url(own), to_url(beside)]


def test_an_address_of_a_socket_is_one_word_of_a_list() -> None:
    path = Path("/a b,c/7070.sock")
    assert to_url(path) == "unix:///a%20b%2Cc/7070.sock"
    assert to_path(to_url(path)) == path
    for wrong in ("unix://host/path", "unix:", "http://x", "unix:///" + "x" * PATH_MAX, "unix:///x%00y", "unix:///x?y"):
        assert to_path(wrong) is None, wrong
