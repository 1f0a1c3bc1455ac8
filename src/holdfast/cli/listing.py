"""What `get` asks for: nouns, the filters that go with each of them, and lists that are longer than one page."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.model.nearest import suggest

from .connection import CommandFailed

if TYPE_CHECKING:
    from holdfast.client import Client

PAGE = 1000  # items; the server sends no more in one answer
SHOWN = 100  # items that are shown if neither --limit nor --all is given
NOUNS = ("pools", "workers", "claims", "tenants", "duties", "replicas", "events")
SINGULARS = {"pool": "pools", "worker": "workers", "claim": "claims", "tenant": "tenants", "duty": "duties",
             "replica": "replicas", "event": "events"}  # fmt: skip
ALONE = ("pools", "workers", "claims", "tenants")  # those with an endpoint for a single item
FILTERS = {
    "workers": {"pool", "tenant", "state", "since"},
    "claims": {"pool", "tenant", "state", "outcome", "key", "worker", "since", "label"},
    "events": {"pool", "tenant", "worker", "kind", "since", "until", "tail", "label"},
}


def noun_of(given: str, choices: Sequence[str] = NOUNS) -> str:
    """Returns the noun in the form that `choices` has. Singular and plural are both accepted."""
    forms = {**SINGULARS, **{plural: singular for singular, plural in SINGULARS.items()}}
    for name in (given.lower(), forms.get(given.lower(), "")):
        if name in choices:
            return name
    hint = suggest(given, choices) or f"; it is one of {', '.join(choices)}"
    raise CommandFailed(f"there is no {given!r} to show{hint}", 2)


def request(noun: str, name: str | None, filters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the path and the parameters of a list, or of one item. A filter that does not fit the noun is refused."""
    params: dict[str, Any] = {}
    for field, value in filters.items():
        if value is None:
            continue
        if value == "":
            raise CommandFailed(f"--{field}: it is empty; if it comes from a variable, the variable is not set", 2)
        if field not in FILTERS.get(noun, set()):
            fitting = " and ".join(sorted(each for each, fields in FILTERS.items() if field in fields))
            raise CommandFailed(f"--{field} does not go with {noun}, only with {fitting}", 2)
        params[field] = moment(field, value) if field in ("since", "until") else value
    if name is None:
        return f"/v1/{noun}", params
    if noun in ALONE:
        if params:
            raise CommandFailed(f"--{next(iter(params))} filters a list; leave it out to show {name}", 2)
        return f"/v1/{noun}/{quote(name, safe='')}", {}
    if noun == "events":
        kind = {"c": "claim", "w": "worker"}.get(name.split("-")[0], "pool")
        return "/v1/events", {**params, kind: name}
    raise CommandFailed(f"{noun} have no name: `holdfast get {noun}` shows all", 2)


def moment(field: str, text: str) -> str:
    """Returns the moment as the server reads it. A time without a zone is in the zone of this machine."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text  # a duration, or a mistake that the server explains
    return (at if at.tzinfo else at.astimezone()).isoformat()


async def read(client: "Client", path: str, params: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    """Returns the first `limit` items of a list (all, if it is None) and the cursor of the next one, or a single item."""
    size = PAGE if limit is None else min(limit, PAGE)
    found: dict[str, Any] = json.loads(await client.raw("GET", path, params={**params, "limit": size}))
    while found.get("next") and (limit is None or len(found["items"]) < limit):
        size = PAGE if limit is None else min(limit - len(found["items"]), PAGE)
        after = {**params, "limit": size, "cursor": found["next"]}
        more = json.loads(await client.raw("GET", path, params=after))
        found = {**more, "items": found["items"] + more["items"]}
    return found
