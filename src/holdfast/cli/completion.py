"""Shell completion: `completion` prints the script for a shell, and the functions here propose names, ids and states."""

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from holdfast.client import Client

    from .connection import ServerOptions

SECONDS = 2.0  # a shell waits this long at most for proposals, then it proposes nothing
MOST = 200  # proposals; more do not help on a screen
Complete = Callable[[typer.Context, str], list[str]]
IDENTIFIED_BY = {"pools": "name", "tenants": "name", "workers": "id", "claims": "id", "tokens": "id"}


def register(app: typer.Typer) -> None:
    app.command()(completion)


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell.")]) -> None:
    """Print the script with which Tab completes names in a shell.

    Example: holdfast completion zsh > "${fpath[1]}/_holdfast"
    """
    from typer._completion_shared import get_completion_script  # the function behind its --show-completion

    typer.echo(get_completion_script(prog_name="holdfast", complete_var="_HOLDFAST_COMPLETE", shell=shell))


def names_of(noun: str) -> Complete:
    """Returns a function that proposes the names or ids of this noun, as the server lists them."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        return _proposals(context, noun, incomplete)

    return complete


def name_of_noun(context: typer.Context, incomplete: str) -> list[str]:
    """Proposes names or ids of the noun that stands before, as in `get pools …` and `explain pool …`."""
    noun = _noun(context)
    return _proposals(context, noun, incomplete) if noun else []


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Returns a function that proposes these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def claim_or_worker(context: typer.Context, incomplete: str) -> list[str]:
    """Proposes ids of workers after `w`, and of claims otherwise. One request is enough for a user who waits."""
    return _proposals(context, "workers" if incomplete.startswith("w") else "claims", incomplete)


def state_of_noun(context: typer.Context, incomplete: str) -> list[str]:
    """Proposes the states of workers, of claims, or of both if the noun is not known yet."""
    from typing import get_args

    from holdfast.model import claim, worker

    states = {"workers": get_args(worker.State), "claims": get_args(claim.State)}
    found = states.get(_noun(context)) or [each for known in states.values() for each in known]
    return [state for state in found if state.startswith(incomplete)]


def context_names(incomplete: str) -> list[str]:
    """Proposes the names of the contexts that `holdfast login` stored."""
    from holdfast.client.context import contexts_file, read_contexts

    try:
        known = read_contexts(contexts_file()).contexts
    except Exception:  # a damaged file must not spoil the user's line
        return []
    return [name for name in known if name.startswith(incomplete)]


def _noun(context: typer.Context) -> str:
    """Returns the noun of the line in the plural. If an option has no value yet, the noun is among the unparsed arguments."""
    for word in (context.params.get("noun"), context.params.get("kind"), *context.args):
        noun = f"{str(word).removesuffix('s')}s"
        if noun in IDENTIFIED_BY:
            return noun
    return ""


def _proposals(context: typer.Context, noun: str, incomplete: str) -> list[str]:
    """Asks the server. Whatever fails, nothing is proposed and nothing is printed, because it would spoil the user's line."""
    try:
        from holdfast.client import Client
        from holdfast.model.shown import is_safe

        found = _options(context).resolve()
        rows = asyncio.run(asyncio.wait_for(_read(Client(found.url, found.token, patience=0.0), noun), SECONDS))
    except Exception:
        return []
    names = [name for row in rows if is_safe(name := str(row[IDENTIFIED_BY[noun]]))]
    return [name for name in names if name.startswith(incomplete)][:MOST]


async def _read(client: "Client", noun: str) -> list[dict[str, Any]]:
    async with client:
        answer = await client.raw("GET", f"/v1/{noun}", params={"limit": 1000})
    rows: list[dict[str, Any]] = json.loads(answer)["items"]
    return rows


def _options(context: typer.Context) -> "ServerOptions":
    """Returns the global options of the line that is being completed. No command runs, so `context.obj` is not set."""
    from .connection import ServerOptions  # it imports this module

    given = context.find_root().params
    return ServerOptions(given.get("url"), given.get("token"), given.get("name"), given.get("data_dir"))
