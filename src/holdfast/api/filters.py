"""Read the filters of lists: a moment, a pool that exists, kinds of events, labels. Every refusal names its field."""

from datetime import datetime

from ..model.duration import seconds
from ..model.event import KINDS, kinds_named
from ..model.label import LabelFilter, parse_filter
from ..model.nearest import suggest
from .context import Context
from .problems import refused

MOMENT = "is neither a duration such as 10m nor a time such as 2030-01-31T12:00:00Z"


async def moment(context: Context, field: str, text: str | None) -> float | None:
    """Returns the moment as seconds since 1970. A duration means so long ago, by the database's clock."""
    if text is None:
        return None
    if text[:1].isdigit() and text[-1:] in ("s", "m", "h"):
        try:
            return await context.store.now() - seconds(text)
        except ValueError as error:
            raise refused(field, str(error)) from None
    try:
        # A `+` that the caller did not quote arrives as a space.
        at = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise refused(field, MOMENT) from None
    if at.tzinfo is None:
        raise refused(field, "has no time zone; add Z for UTC, or an offset such as +02:00")
    return at.timestamp()


async def known_pool(context: Context, name: str | None) -> str | None:
    """Returns the name of a pool by which a list is filtered. An unknown name is refused with the nearest one, because an empty
    list would look as if the pool had nothing. A pool that is gone is known until it is pruned."""
    if name is None or await context.store.pools.exists(name):
        return name
    names = {pool.name for pool in await context.store.pools.all()}
    raise refused("pool", f"there is no pool {name!r}{suggest(name, names)}")


def labels(text: str | None) -> LabelFilter | None:
    """Returns the filter of labels such as `team=x,ci`."""
    try:
        return None if text is None else parse_filter(text)
    except ValueError as error:
        raise refused("label", str(error)) from None


def kinds(text: str | None) -> tuple[str, ...]:
    """Returns the kinds of events that a filter names: kinds or nouns, separated by commas."""
    found: list[str] = []
    for name in text.split(",") if text is not None else ():
        named = kinds_named(name)
        if not named:
            near = suggest(name, KINDS) or "; a kind is for example claim.ended, and claim stands for all kinds of claims"
            raise refused("kind", f"there is no kind {name!r}{near}")
        found += named
    return tuple(dict.fromkeys(found))
