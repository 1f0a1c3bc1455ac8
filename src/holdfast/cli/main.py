"""Registers all commands, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 refused or unreachable, 2 wrong usage. `run` exits with the code of its job, see exit_codes.py.
Slow imports are inside the commands, so that `--help` and completion are quick.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import (
    apply,
    brake,
    claims,
    completion,
    delete,
    get,
    init,
    login,
    manifests,
    operate,
    plan,
    recover,
    run,
    serve,
    token,
    top,
    wait,
)
from .connection import ServerOptions, not_empty

app = typer.Typer(
    name="holdfast",
    help="Fleets of warm workers: one holder each, never killed while busy, never leaked while idle.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it would print local variables, which may hold secrets
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    """Prints the version and exits. It runs while the options are read, so that no command is needed."""
    if wanted:
        from holdfast import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(help="The server's URL; several replicas separated by commas. Also HOLDFAST_URL.", callback=not_empty),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="The token. Also HOLDFAST_TOKEN, which other users cannot see.", callback=not_empty)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="The name of a context that `holdfast login` stored.",
            autocompletion=completion.context_names,
            callback=not_empty,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The data directory of a fleet on this machine; .holdfast by default. Also HOLDFAST_DATA_DIR."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Fleets of warm workers: one holder each, never killed while busy, never leaked while idle.

    Without --url, HOLDFAST_URL or a login, commands use the fleet that `holdfast up` started in this folder, on any port.
    """
    context.obj = ServerOptions(url=url, token=token, context=name, data_dir=data_dir)
    if data_dir is not None:  # commands that run a fleet have the option as well
        context.default_map = {command: {"data_dir": data_dir} for command in ("up", "serve", "migrate")}


MODULES = (
    *(init, login, apply, get, delete, run, claims, wait, operate, brake, recover),
    *(top, plan, token, serve, manifests, completion),
)
for module in MODULES:
    module.register(app)


def main(arguments: list[str] | None = None) -> None:
    from .connection import print_error

    try:
        app(args=arguments)
    except Exception as error:
        sys.exit(print_error(error))


if __name__ == "__main__":
    main()
