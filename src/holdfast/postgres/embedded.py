"""Run a private Postgres for a replica: find its binaries, create its cluster once, start it, stop it.

data_dir holds cluster/ (Postgres's own folder, with our password and settings), socket/ (the only way to connect) and
postgres.log. Everything here blocks, so call it before the event loop runs, or from a thread.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .binaries import Account, PostgresFailed, PostgresMissing, can, find_binaries, run, shared, usable
from .server_files import discard, give, let_through, write_file

ON_LINUX = sys.platform == "linux"
ROLE = DATABASE = "holdfast"
PASSWORD = "holdfast.password"
CONF = "holdfast.conf"
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_MAX = 103  # bytes, the limit of macOS; Linux allows 107
WAIT_SECONDS = 60  # enough for a start after a crash, which replays at most max_wal_size, and for a stop, which writes as much
# Not TMPDIR, because server and clients must use the same folder, and the path must stay short.
SOCKETS = Path("/tmp")  # noqa: S108 - we use a private folder below it, and refuse one that another account made
SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",  # a claim must survive a crash once its holder has the answer
    "wal_level": "replica",
    "max_wal_senders": "4",
    "checkpoint_timeout": "5min",
    "max_wal_size": "1GB",
    "idle_in_transaction_session_timeout": "30s",  # a stuck replica must not hold rows for longer
    "jit": "off",  # our statements are short, so compiling costs more than it saves
}


Fill = Callable[[Path, Account | None], None]


@dataclass(frozen=True)
class EmbeddedPostgres:
    """One cluster in one folder. The password is not a field, so that no repr shows it."""

    data_dir: Path
    bin_dir: Path = field(default_factory=find_binaries)

    @property
    def cluster(self) -> Path:
        return self.data_dir.resolve() / "cluster"

    @property
    def log(self) -> Path:
        return self.data_dir.resolve() / "postgres.log"

    @property
    def socket_dir(self) -> Path:
        inside = self.data_dir.resolve() / "socket"
        # Only a plain path can be used, because clients split hosts at commas and each quotes paths differently.
        if len(str(inside / SOCKET_NAME)) <= SOCKET_PATH_MAX and re.fullmatch(r"[\w/.-]+", str(inside), re.ASCII):
            return inside
        return SOCKETS / f"holdfast-{hashlib.sha256(os.fsencode(inside)).hexdigest()[:16]}"

    @property
    def dsn(self) -> str:
        """Returns the DSN with the password. Do not print it."""
        return f"postgresql://{ROLE}:{self._password()}@/{DATABASE}?host={self.socket_dir}&port=5432"

    @property
    def pid(self) -> int | None:
        found = self._postmaster()
        return found[0] if found else None

    def running(self) -> bool:
        """Returns whether the server accepts connections now."""
        found = self._postmaster()
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self.socket_dir / SOCKET_NAME))
            return found is not None and found[1] == "ready"
        return False

    def crashed(self) -> bool:
        """Returns whether the server died. A server that shuts down in order removes its lock file before it ends."""
        return self.pid is None and (self.cluster / "postmaster.pid").exists()

    def start(self) -> None:
        """Creates the cluster if there is none, starts the server, and returns when it accepts connections."""
        with self._locked():
            if not (self.cluster / "PG_VERSION").is_file():
                self._create(self._initdb)
            deadline = time.monotonic() + WAIT_SECONDS
            while (found := self._postmaster()) and found[1] != "ready" and time.monotonic() < deadline:
                time.sleep(0.05)  # the server still starts or stops, because an earlier process was killed while it waited
            if not self.running():
                self._launch()

    def stop(self, fast: bool = True) -> None:
        """Shuts the server down in order. If `fast`, open sessions are ended, otherwise this waits until they end."""
        self._halt("fast" if fast else "smart")

    def kill(self) -> None:
        """Stops the server without a checkpoint, like a crash. The next start replays the WAL."""
        self._halt("immediate")

    def base_backup(self, target: Path) -> None:
        """Copies the running cluster into a new folder."""
        client = ("--host", self.socket_dir, "--port=5432", "--username", ROLE, "--no-password")
        copy = ("--pgdata", target.absolute(), "--wal-method=stream", "--checkpoint=fast")
        run(None, self.bin_dir / "pg_basebackup", *client, *copy, password=self._password())

    def restore(self, source: Path) -> None:
        """Replaces the stopped cluster by a base backup, or creates the cluster from it if there is none."""
        if not (source / PASSWORD).is_file():
            raise PostgresFailed(f"{source} is not a base backup of Holdfast: it has no {PASSWORD}")

        def copy(cluster: Path, account: Account | None) -> None:
            shutil.copytree(source, cluster, symlinks=True)
            cluster.chmod(0o700)
            give(cluster, account)
            os.sync()  # the copy must be on disk before the old cluster is removed

        with self._locked():
            if self.pid:
                raise PostgresFailed(f"Postgres runs in {self.data_dir} as pid {self.pid}: stop it, then restore")
            if self.log.parent.exists():
                self._replace(copy)
            else:
                self._create(copy)

    def _replace(self, fill: Fill) -> None:
        new, old = self.cluster.with_name("cluster.new"), self.cluster.with_name("cluster.old")
        discard(new)
        fill(new, self._account())
        if self.cluster.exists():  # it does not exist if an earlier restore was interrupted between these renames
            discard(old)
            self.cluster.rename(old)
        new.rename(self.cluster)
        discard(old)

    def _launch(self) -> None:
        account = self._account()
        let_through(self.data_dir.absolute().parent, account)
        with contextlib.suppress(FileExistsError):
            self.socket_dir.mkdir(mode=0o700)
            give(self.socket_dir, account)
        owner, found = account.uid if account else os.geteuid(), self.socket_dir.lstat()
        if (found.st_uid, found.st_mode) != (owner, 0o40700):
            raise PostgresFailed(f"{self.socket_dir} is not a folder of uid {owner} with mode 0700: remove it")
        settings = SETTINGS | {"unix_socket_directories": str(self.socket_dir)}
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        write_file(self.cluster / CONF, "".join(lines), account)
        for lock in (self.cluster / "postmaster.pid", self.socket_dir / f"{SOCKET_NAME}.lock"):
            # Postgres respects a lock file if any process of its account has the pid in it. After a container's restart that is
            # often another program, or without an init process the old server's zombie. Postgres takes a lock with the pid of the
            # process that started it for stale, so we write ours. The other lines stay, because Postgres finds old backends by
            # them.
            if lock.exists() and not self.pid:
                write_file(lock, re.sub(r"^-?\d+", str(os.getpid()), lock.read_text()), account)
        before = self.log.stat().st_size if self.log.exists() else 0
        try:
            self._pg_ctl("start", "--log", self.log)
        except PostgresFailed as failure:
            written = self.log.read_bytes()[before:] if self.log.exists() else b""
            lines = written.decode(errors="replace").splitlines()[-20:]
            raise PostgresFailed("\n".join([str(failure), f"last lines of {self.log}:", *lines])) from failure

    def _halt(self, mode: str) -> None:
        try:
            if self.pid:
                self._pg_ctl("stop", "--mode", mode)
        except PostgresFailed:
            if self.pid:  # otherwise the server has ended by itself
                raise

    def _pg_ctl(self, verb: str, *options: str | Path) -> None:
        account = self._account()
        pg_ctl = usable(self.bin_dir, account) / "pg_ctl"
        run(account, pg_ctl, verb, "--wait", f"--timeout={WAIT_SECONDS}", "--pgdata", self.cluster, *options)

    def _create(self, fill: Fill) -> None:
        """Fills a folder next to data_dir and renames it when it is complete, so that a crash leaves no incomplete cluster."""
        try:
            if os.path.lexists(self.data_dir):
                self.data_dir.rmdir()
        except OSError as error:
            raise PostgresFailed(f"{self.data_dir} has no cluster and is not empty: restore it or move it") from error
        account = self._account()
        let_through(self.data_dir.absolute().parent, account)
        home = new = self.data_dir.absolute().with_name(self.data_dir.name + ".new")
        discard(new)
        try:
            if account and not can(account, "/bin/sh", "-c", 'cd "$1"', "sh", new.parent):
                home = shared() / f"postgres-{secrets.token_hex(8)}"
                new.symlink_to(home)  # link before folder: a crash between them leaves a link that we can find
            home.mkdir(mode=0o700)
            give(home, account)
            fill(home / "cluster", account)
            new.rename(self.data_dir)
        except BaseException:
            discard(new)
            raise

    def _initdb(self, cluster: Path, account: Account | None) -> None:
        bin_dir, password, conf = (
            usable(self.bin_dir, account),
            cluster.parent / PASSWORD,
            cluster / "postgresql.conf",
        )
        write_file(password, secrets.token_urlsafe(32), account)
        kind = (
            "--encoding=UTF8",
            "--no-locale",
            "--data-checksums",
            "--username",
            ROLE,
            "--pwfile",
            password,
        )
        authentication = ("--auth-local=scram-sha-256", "--auth-host=reject")
        run(account, bin_dir / "initdb", "--pgdata", cluster, *kind, *authentication)
        # Creates the database in single-user mode, so that it exists before a client can connect to the cluster.
        alone = ("--single", "-c", "exit_on_error=on", "-D", cluster, "postgres")
        run(account, bin_dir / "postgres", *alone, stdin=f"CREATE DATABASE {DATABASE}\n")
        write_file(conf, conf.read_text() + f"include '{CONF}'\n", account)
        password.rename(cluster / PASSWORD)

    def _account(self) -> Account | None:
        if os.geteuid() != 0:
            return None
        home = self.data_dir.resolve()
        if home.is_dir() and home.stat().st_uid != 0:
            return Account(home.stat().st_uid, home.stat().st_gid)
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                return Account(pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid)
        raise PostgresFailed("Postgres refuses to run as root, and there is no account postgres or nobody to run it")

    def _password(self) -> str:
        try:
            return (self.cluster / PASSWORD).read_text()
        except FileNotFoundError:
            raise PostgresFailed(f"{self.data_dir} has no cluster yet: start() creates it") from None

    def _postmaster(self) -> tuple[int, str] | None:
        """Returns the server's pid and its state as Postgres writes it, or None if that process does not live."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
            pid, state = int(lines[0]), lines[7].strip() if len(lines) > 7 else "starting"
            os.kill(pid, 0)
            stat = Path(f"/proc/{pid}/stat")  # on other systems only the pid is checked
            process = stat.read_text() if ON_LINUX else "0 (postgres) S"
            if re.match(r"\d+ \(postgres\) [^Z]", process):
                return pid, state
        return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        path = self.data_dir.with_name(self.data_dir.name + ".lock")
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


__all__ = ["EmbeddedPostgres", "PostgresFailed", "PostgresMissing", "find_binaries"]
