"""OpenAPI 3.1, written from the table of doors."""

import re
from typing import Any

import msgspec

from .doors import AGENT, ANYONE, BOOTSTRAP, PATH_LIMIT, Door
from .problems import ProblemBody

TEMPLATE = "#/components/schemas/{name}"


def document(doors: list[Door], version: str) -> dict[str, Any]:
    kinds = [ProblemBody]
    for door in doors:
        kinds += [kind for kind in (door.body, *door.answers.values()) if kind is not None]
    unique = list({id(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=TEMPLATE)
    schema_of = {id(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for door in doors:
        paths.setdefault(door.path, {})[door.method.lower()] = _operation(door, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(door: Door, schema_of: dict[int, Any]) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": TEMPLATE.format(name="ProblemBody")}}}
    responses: dict[str, Any] = {}
    for status, kind in door.answers.items():
        content: dict[str, Any] | None = None
        if door.raw is not None:
            content = {door.raw: {}}
        elif status != 204:
            content = {"application/json": {"schema": schema_of.get(id(kind), {})}}
        responses[str(status)] = {"description": "done", **({"content": content} if content else {})}
        if door.path == "/v1/events":
            responses[str(status)]["content"]["text/event-stream"] = {}
    errors = set(door.errors) | {401, 422, 503} | ({403} if door.roles not in (AGENT, BOOTSTRAP, ANYONE) else set())
    if door.body is not None:
        errors |= {400, 413}
    if "{" in door.path:
        errors |= {404}
    for status in sorted(errors):
        responses[str(status)] = {"description": "a problem", "content": problem}
    operation: dict[str, Any] = {
        "operationId": _id(door),
        "summary": door.summary,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"minLength": 1, "maxLength": PATH_LIMIT, **msgspec.json.schema(door.names if not n else str)},
            }
            for n, name in enumerate(re.findall(r"{(\w+)}", door.path))
        ],
        "responses": responses,
        "security": [{"bearer": []}],
    }
    operation["parameters"] += _query(door)
    if door.body is not None:
        operation["requestBody"] = {
            "required": door.needs_body,
            "content": {"application/json": {"schema": schema_of[id(door.body)]}},
        }
    return operation


def _query(door: Door) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(door.query)
    own = next(iter(schema["$defs"].values())) if "$defs" in schema else schema
    return [
        {"name": name, "in": "query", "required": name in own.get("required", []), "schema": _plain(kind)}
        for name, kind in own.get("properties", {}).items()
    ]


def _plain(kind: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is left out rather than null."""
    options = [option for option in kind.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        return {**{k: v for k, v in kind.items() if k not in ("anyOf", "default")}, **options[0]}
    return kind


def _id(door: Door) -> str:
    words = [word for word in re.split(r"[^a-z0-9]+", door.path) if word and word != "v1"]
    return "_".join([door.method.lower(), *words])
