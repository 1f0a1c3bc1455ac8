"""Generates the OpenAPI 3.1 documents from the table of routes: one for users, and one for agents (the worker protocol)."""

import re
from typing import Any

import msgspec

from .examples import EXAMPLES, OUTPUT, PROBLEMS, RAW, STREAM, parameter
from .field_texts import text_of
from .problems import TITLES, ProblemBody
from .routes import AGENT, ANYONE, BOOTSTRAP, PATH_LIMIT, Route

TEMPLATE = "#/components/schemas/{name}"
AGENTS = "agents"
# What each tag is about. A route's tag is in TAG_OF, by the first part of its path, or is that part itself.
TAGS = {
    "claims": "Claim a worker, hold it, read its output, give it back.",
    "pools": "What workers there are, and how many.",
    "workers": "Single workers, for operators.",
    "tenants": "The limits of tenants, for operators and admins.",
    "history": "What happened, and why.",
    "system": "Replicas, duties, the brake, recovery, checks and metrics, for operators.",
    "access": "Tokens, and what the caller's own token may do.",
    "health": "Whether a replica lives and serves, and these documents.",
    AGENTS: "The worker protocol, which only agents use (docs/worker-protocol.md).",
}
TAG_OF = {
    "events": "history",
    "explain": "history",
    "duties": "system",
    "replicas": "system",
    "brake": "system",
    "recovery": "system",
    "doctor": "system",
    "metrics": "system",
    "tokens": "access",
    "me": "access",
    "healthz": "health",
    "readyz": "health",
    "openapi.json": "health",
    "openapi-agents.json": "health",
    "worker": AGENTS,
    "apply": "pools",
}
IN_PATHS = {"id": "Its id.", "name": "Its name.", "kind": "What to explain.", "worker": "The worker's id."}
DONE = {
    200: "Done.",
    201: "Created; a claim is active or has ended.",
    202: "Accepted; the claim waits or is being handed over.",
    204: "Done. There is no body.",
}


def tag(route: Route) -> str:
    first = route.path.removeprefix("/v1").split("/")[1]
    return TAG_OF.get(first, first)


def for_agents(route: Route) -> bool:
    return tag(route) == AGENTS


def document(routes: list[Route], version: str) -> dict[str, Any]:
    kinds = [ProblemBody]
    for route in routes:
        kinds += [kind for found in (route.body, *route.answers.values()) for kind in _kinds(found)]
    unique = list({id(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=TEMPLATE)
    for name, component in components.items():
        _describe(name, component)
    schema_of = {id(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    used = {tag(route) for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version,
            "description": "Fleets of warm workers: one holder each, never killed while busy, never leaked while idle.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in TAGS.items() if name in used],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {_name(status): _problem(status) for status in PROBLEMS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Every request needs a token, on loopback as well."}
            },
        },
    }


def _describe(owner: str, schema: dict[str, Any]) -> None:
    """Adds the meaning of each field to a type's schema."""
    for name, field in schema.get("properties", {}).items():
        if text := text_of(owner, name, field.get("description")):
            field["description"] = text


def _operation(route: Route, schema_of: dict[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        content: dict[str, Any] | None = None
        if route.raw is not None:
            content = {route.raw: {"example": RAW.get(route.path)}}
        elif status != 204:
            content = {"application/json": _answer(kind, schema_of, RAW.get(route.path))}
        responses[str(status)] = {"description": DONE[status], **({"content": content} if content else {})}
        if route.path == "/v1/events":
            responses[str(status)]["content"]["text/event-stream"] = {"example": STREAM}
        if route.path.endswith("/output"):
            responses[str(status)]["content"]["application/x-ndjson"] = {"example": OUTPUT}
    errors = set(route.errors) | {401, 422, 503} | ({403} if route.roles not in (AGENT, BOOTSTRAP, ANYONE) else set())
    if route.body is not None:
        errors |= {400, 413}
    if "{" in route.path:
        errors |= {404}
    for status in sorted(errors):
        responses[str(status)] = {"$ref": f"#/components/responses/{_name(status)}"}
    operation: dict[str, Any] = {
        "operationId": _id(route),
        "tags": [tag(route)],
        "summary": route.summary,
        "description": _roles(route),
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": IN_PATHS.get(name, ""),
                "example": parameter(route.path, name),
                "schema": {"minLength": 1, "maxLength": PATH_LIMIT, **msgspec.json.schema(route.names if not n else str)},
            }
            for n, name in enumerate(re.findall(r"{(\w+)}", route.path))
        ],
        "responses": responses,
        "security": [{"bearer": []}],
    }
    operation["parameters"] += _query(route)
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.needs_body,
            "content": {"application/json": _content(route.body, schema_of[id(route.body)])},
        }
    return operation


def _name(status: int) -> str:
    return f"Problem{status}"


def _problem(status: int) -> dict[str, Any]:
    """Returns the response of a status that is an error. All operations share it."""
    code, detail = PROBLEMS[status]
    field, _, reason = detail.partition(": ")
    found = [{"field": field, "reason": reason}] if status == 422 else []
    example = {
        "type": f"urn:holdfast:{code}",
        "title": TITLES[status],
        "status": status,
        "detail": detail,
        "code": code,
        "problems": found,
        "errors": found,
    }
    content = {"schema": {"$ref": TEMPLATE.format(name="ProblemBody")}, "example": example}
    return {"description": f"{TITLES[status]}.", "content": {"application/problem+json": content}}


def _kinds(found: Any) -> tuple[Any, ...]:
    """Returns the types of a body or an answer. An answer has several if it depends on the caller's role."""
    return found if isinstance(found, tuple) else () if found is None else (found,)


def _answer(kind: Any, schema_of: dict[int, Any], example: Any) -> dict[str, Any]:
    if not isinstance(kind, tuple):
        return _content(kind, schema_of.get(id(kind), {}), example)
    return _content(kind[0], {"anyOf": [schema_of[id(each)] for each in kind]})


def _content(kind: Any, schema: dict[str, Any], example: Any = None) -> dict[str, Any]:
    example = EXAMPLES.get(getattr(kind, "__name__", ""), example)
    return {"schema": schema} | ({} if example is None else {"example": example})


def _roles(route: Route) -> str:
    if route.roles == BOOTSTRAP:
        return "Needs the token that the cluster gave to the worker's pod."
    if route.roles == AGENT:
        return "Needs the token of a registered agent."
    if route.roles == ANYONE:
        return "Any valid token may do this."
    *others, last = route.roles
    return f"Needs a token with the role {' or '.join([', '.join(others), last] if others else [last])}."


def _query(route: Route) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(route.query)
    own = next(iter(schema["$defs"].values())) if "$defs" in schema else schema
    return [
        {
            "name": name,
            "in": "query",
            "required": name in own.get("required", []),
            "description": text_of(route.query.__name__, name, kind.get("description")) or "",
            "example": parameter(route.path, name),
            "schema": _plain(kind),
        }
        for name, kind in own.get("properties", {}).items()
    ]


def _plain(kind: dict[str, Any]) -> dict[str, Any]:
    """Removes null from a query parameter's schema, because a parameter is left out instead."""
    options = [option for option in kind.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        return {**{k: v for k, v in kind.items() if k not in ("anyOf", "default")}, **options[0]}
    return kind


def _id(route: Route) -> str:
    parts = [part for part in re.split(r"[^a-z0-9]+", route.path) if part and part != "v1"]
    return "_".join([route.method.lower(), *parts])
