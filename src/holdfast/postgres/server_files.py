"""Write and remove the files of a private Postgres server, and give them to its account."""

import os
import shutil
from pathlib import Path

from .binaries import Account, can


def write_file(path: Path, text: str, account: Account | None) -> None:
    """Writes the file completely or not at all, readable only for the server's account."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    give(new, account)
    new.rename(path)


def give(path: Path, account: Account | None) -> None:
    """Makes the account the owner of the folder and of everything in it."""
    if account is None:
        return
    for item in (path, *path.rglob("*")):
        os.chown(item, account.uid, account.gid, follow_symlinks=False)


def let_through(folder: Path, account: Account | None) -> None:
    """Lets the server's account pass through a fleet's data directory to its own folder, by the right of the account's group. The
    group cannot list the directory. Other folders are never changed, because they may belong to somebody else."""
    if account is None or not (folder / "install").exists() or can(account, "/bin/sh", "-c", 'cd "$1"', "sh", folder):
        return
    os.chown(folder, -1, account.gid)
    folder.chmod(0o710)


def discard(path: Path) -> None:
    """Removes a folder that was never completed, or that was replaced, and also the folder behind our link."""
    if path.is_symlink():
        shutil.rmtree(path.resolve(), ignore_errors=True)
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
