"""`init`: writes an example file with pools, which explains itself and never replaces a file."""

from pathlib import Path
from typing import Annotated

import typer

from .connection import CommandFailed

EXAMPLE = "holdfast.yaml"


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(
    file: Annotated[Path, typer.Argument(help="The file to write. An existing one is not changed.")] = Path(EXAMPLE),
) -> None:
    """Write an example file with pools and a tenant.

    It has a pool of jobs, a pool of sessions and a tenant, all explained in comments.

    Example: holdfast init
    """
    from importlib.resources import files

    text = files("holdfast.cli").joinpath("example.yaml").read_text()
    try:
        with file.open("x") as new:
            new.write(text.replace("FILE", str(file)))
    except FileExistsError:
        raise CommandFailed(f"{file} exists already and was not changed; name another file: holdfast init FILE") from None
    typer.echo(f"wrote {file}; try: holdfast up -f {file}, or on a running fleet: holdfast apply -f {file}")
