"""The exit codes of `run` and `claim` that are Holdfast's own, so that scripts can tell them from the command's (docs/cli.md)."""

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from .connection import CommandFailed, print_error

if TYPE_CHECKING:
    from holdfast.client import Claim

NO_WORKER = 124  # refused or timed out; the same code as timeout(1)
HOLDFAST_FAILED = 125  # the same code as `docker run`
GENERAL = (1, 2)  # what other commands exit with: failed, wrong usage

TABLE = """\b
Exit codes:
  124    the claim was refused or timed out
  125    Holdfast failed: wrong usage, no connection, a lost worker
  126    the command was found and cannot be started
  127    the command was not found
  128+N  signal N ended the command, or interrupted `run`
  other  the command's own"""


def code_of(claim: "Claim") -> int:
    """Returns the exit code for a claim that has ended: its command's own, or Holdfast's."""
    if claim.outcome in ("completed", "failed"):
        fallback = 0 if claim.outcome == "completed" else 1
        return claim.exit_code if claim.exit_code is not None else fallback
    return NO_WORKER if claim.outcome in ("refused", "expired") else HOLDFAST_FAILED


class RunsCommand(TyperCommand):
    """A command line command that exits with the code of what it runs. All failures of Holdfast itself become HOLDFAST_FAILED."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except TyperException as error:
            error.exit_code = HOLDFAST_FAILED  # typer prints the error and exits with this code
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except CommandFailed as failed:
            if failed.code in GENERAL:
                failed.code = HOLDFAST_FAILED
            raise
        except Exception as error:
            print_error(error)
            raise typer.Exit(HOLDFAST_FAILED) from None
