"""The agent's settings, read from environment variables. A wrong setting raises an error that names it."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ..unix_socket import to_path

WILDCARDS = ("0.0.0.0", "::")
LONELY_SECONDS = 600.0  # the protocol's 10 minutes


class BadConfig(Exception):
    """A setting is missing or makes no sense."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    uid: str
    token_file: Path
    servers_file: Path | None
    servers: tuple[str, ...]
    folder: Path
    outputs: Path
    lonely: float
    bind: str
    port: int
    advertise: str
    server_key: str | None = None  # the public key with which servers prove themselves; older pods have none
    stage: Path | None = None  # the folder in which another container finds its job
    termination: Path | None = None  # the file that names the claim of that job

    def read_servers(self) -> tuple[str, ...]:
        """Reads the current list of replicas. A file may name none, because all replicas may have left. Raises BadConfig if
        the file is wrong or missing. Keep the old list in both cases."""
        if self.servers_file is None:
            return self.servers
        try:
            lines = self.servers_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"HOLDFAST_SERVERS_FILE: {_error_text(error)}") from None
        return _urls(lines, f"HOLDFAST_SERVERS_FILE: {self.servers_file}")

    def read_token(self) -> str:
        """Reads the current bootstrap token. The file is rotated while the agent runs."""
        try:
            token = self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"HOLDFAST_TOKEN_FILE: {_error_text(error)}") from None
        if not token or not token.isascii() or not token.isprintable():
            raise BadConfig(f"HOLDFAST_TOKEN_FILE: {self.token_file} holds no token")
        return token


def from_environment(env: Mapping[str, str]) -> Config:
    """Reads and checks all settings now, so that a wrong pod template fails at the start with a reason. Raises BadConfig."""

    def needed(name: str) -> str:
        value = env.get(name, "").strip()
        if not value:
            raise BadConfig(f"{name} is not set")
        return value

    folder = Path(needed("HOLDFAST_WORKER_DIR")).absolute()
    file = env.get("HOLDFAST_SERVERS_FILE", "").strip()
    listed = env.get("HOLDFAST_SERVERS", "").strip()
    if not file and not listed:
        raise BadConfig("neither HOLDFAST_SERVERS_FILE nor HOLDFAST_SERVERS is set")
    servers = () if file else _urls(listed.split(","), "HOLDFAST_SERVERS")
    if not file and not servers:
        raise BadConfig("HOLDFAST_SERVERS names no server")
    bind = env.get("HOLDFAST_BIND", "").strip() or "127.0.0.1"
    advertise = env.get("HOLDFAST_ADVERTISE", "").strip() or bind
    if advertise in WILDCARDS:
        raise BadConfig(f"HOLDFAST_BIND is {bind}: set HOLDFAST_ADVERTISE to the host that holders can reach")
    config = Config(
        worker=needed("HOLDFAST_WORKER"),
        uid=needed("HOLDFAST_POD_UID"),
        token_file=Path(needed("HOLDFAST_TOKEN_FILE")).absolute(),
        servers_file=Path(file).absolute() if file else None,
        servers=servers,
        folder=folder,
        outputs=Path(env.get("HOLDFAST_OUTPUT_DIR", "").strip() or folder / "output").absolute(),
        lonely=_number(env, "HOLDFAST_LONELY_SECONDS", LONELY_SECONDS, most=float("inf")),
        bind=bind,
        port=int(_number(env, "HOLDFAST_PORT", 0, most=65_535)),
        advertise=advertise,
        server_key=_key(env, "HOLDFAST_SERVER_KEY"),
        stage=_path(env, "HOLDFAST_STAGE"),
        termination=_path(env, "HOLDFAST_TERMINATION"),
    )
    config.read_servers()
    config.read_token()
    for name, needs in (
        ("HOLDFAST_WORKER_DIR", config.folder / "work"),
        ("HOLDFAST_OUTPUT_DIR", config.outputs),
    ):
        try:
            needs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadConfig(f"{name}: {_error_text(error)}") from None
        if not os.access(needs, os.W_OK | os.X_OK):
            raise BadConfig(f"{name}: cannot write to {needs}")
    return config


def _urls(texts: list[str], where: str) -> tuple[str, ...]:
    urls = tuple(text.strip().rstrip("/") for text in texts if text.strip() and not text.strip().startswith("#"))
    for url in urls:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            good = good or to_path(url) is not None
        except ValueError:
            good = False
        if not good:
            raise BadConfig(f"{where}: {url!r} is not an http://, https:// or unix:// address")
    return urls


def _key(env: Mapping[str, str], name: str) -> str | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    from ..proof import PublicKey  # only for agents with a key, because this import takes 7 ms

    try:
        PublicKey(text)
    except ValueError:
        raise BadConfig(f"{name} is not a public key") from None
    return text


def _path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name, "").strip()
    return Path(text).absolute() if text else None


def _number(env: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise BadConfig(f"{name} is {text!r}, which is not a number") from None
    if not 0 <= value <= most:
        raise BadConfig(f"{name} is {text!r}; it must be at least 0" + (f" and at most {most:g}" if most < 1e9 else ""))
    return value


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
