"""Finds the server and the token: from arguments, the environment, the login file, or the fleet on this machine.

A stored token belongs to its address. It is never sent to another address, even if HOLDFAST_URL names one. A data directory leads
only to unix sockets, and they get only that directory's token, because the user may not have written the files of the current
folder.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..unix_socket import to_path
from .errors import NotConfigured
from .transport import addresses

LOCAL_URL = "http://127.0.0.1:7070"
DATA_DIR = Path(".holdfast")  # made by `holdfast up` below its working directory


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """An address (or several, separated by commas) and the token for it."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Context(url={self.url!r})"


class Contexts(msgspec.Struct, frozen=True, kw_only=True):
    """The contexts that `holdfast login` stored, and the name of the one in use."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def with_context(self, name: str, context: Context) -> "Contexts":
        return Contexts(current=name, contexts={**self.contexts, name: context})

    def without(self, name: str) -> "Contexts":
        self.named(name)
        left = {known: context for known, context in self.contexts.items() if known != name}
        return Contexts(current=None if self.current == name else self.current, contexts=left)

    def using(self, name: str) -> "Contexts":
        self.named(name)
        return Contexts(current=name, contexts=self.contexts)

    def named(self, name: str) -> Context:
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotConfigured(f"no context {name!r} (known: {known}); `holdfast login` makes one")
        return self.contexts[name]


def contexts_file(env: Mapping[str, str] = os.environ) -> Path:
    home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
    return Path(home) / "holdfast" / "contexts.json"


def read_contexts(path: Path) -> Contexts:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (msgspec.DecodeError, OSError) as error:
        raise NotConfigured(f"{path}: cannot be read: {error}") from error


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replaces the file as a whole, so that a crash leaves the old one. Only its owner can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")  # creates it with mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(msgspec.to_builtins(contexts), file, indent=2)
            file.write("\n")
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


class LocalFleet(msgspec.Struct, frozen=True):
    """A fleet of this machine: its token, the sockets of its replicas, and their HTTP addresses."""

    data_dir: Path
    token: str
    sockets: list[str]
    urls: list[str]

    @property
    def context(self) -> Context:
        """Returns the sockets with the token. The HTTP addresses are not used, because a replica that stopped does not protect
        its port: another user's process could listen there and get the token."""
        if strange := [each for each in self.sockets if to_path(each) is None]:
            raise NotConfigured(f"{self.data_dir / 'sockets'}: {strange[0]!r} is not the address of a socket")
        if not self.sockets:
            raise NotConfigured(
                f"{self.data_dir}: its fleet does not run; start it with `holdfast up --data-dir {self.data_dir}`, or name its"
                " address with --url"
            )
        return Context(url=",".join(self.sockets), token=self.token)


def fleet_in(data_dir: Path) -> LocalFleet | None:
    """Returns the fleet of this data directory. Returns None if there is none, or if this user may not read its token."""
    try:
        token = (data_dir / "token").read_text().strip()
    except OSError:
        return None
    return LocalFleet(data_dir, token, _lines(data_dir / "sockets"), _lines(data_dir / "servers"))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def resolve(
    url: str | Sequence[str] | None = None,
    token: str | None = None,
    *,
    context: str | None = None,
    data_dir: Path | None = None,
    env: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Context:
    """Returns the server and token to use. The order is: arguments, the named context or data directory, the environment, the
    context in use, the fleet whose data directory is in the current folder. The environment's token is not used for an address
    that comes from a data directory."""
    if url is not None and not isinstance(url, str):
        url = ",".join(url)
    stored = read_contexts(contexts_file(env))
    current = stored.named(stored.current) if stored.current in stored.contexts else None
    named = stored.named(context) if context is not None else None
    if named is None and data_dir is not None:
        named = _fleet(data_dir)
    if url is None and named is None:
        url = env.get("HOLDFAST_URL") or None
    of_env = env.get("HOLDFAST_DATA_DIR")
    if of_env and url is None and named is None:
        current = _fleet(Path(of_env))
    local = fleet_in(Path(of_env) if of_env else (folder or Path.cwd()) / DATA_DIR)
    if local is not None and url is None and named is None and (of_env or current is None):
        return Context(url=local.context.url, token=token or local.token)
    chosen = named or current
    address = url or (chosen.url if chosen else LOCAL_URL)
    if token is None and not (named and address == named.url):
        token = env.get("HOLDFAST_TOKEN") or None
    token = token or _token_for(address, [each for each in (named, current, *stored.contexts.values()) if each], local)
    if token is None and url is None:
        raise NotConfigured(
            "no server is known here: this folder has no .holdfast, so `holdfast up` was not started in it; name one with"
            " --data-dir or --url, or run `holdfast login URL`"
        )
    if token is None:
        raise NotConfigured(f"no token for {address}: run `holdfast login {address}`, or set HOLDFAST_TOKEN")
    return Context(url=address, token=token)


def _fleet(data_dir: Path) -> Context:
    found = fleet_in(data_dir)
    if found is None:
        raise NotConfigured(f"{data_dir}: has no fleet of yours; `holdfast up --data-dir {data_dir}` starts one")
    return found.context


def _token_for(address: str, known: Sequence[Context], local: LocalFleet | None) -> str | None:
    """Returns the token that belongs to exactly this address, or to some replicas of the local fleet."""
    wanted = addresses(address)
    for each in known:
        if addresses(each.url) == wanted:
            return each.token
    return local.token if local is not None and set(wanted) <= {*local.sockets, *local.urls} else None
