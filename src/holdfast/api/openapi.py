"""Generates the OpenAPI 3.1 document from the table of routes."""

import re
from typing import Any

import msgspec

from .problems import ProblemBody
from .routes import AGENT, ANYONE, BOOTSTRAP, PATH_LIMIT, Route

TEMPLATE = "#/components/schemas/{name}"


def document(routes: list[Route], version: str) -> dict[str, Any]:
    kinds = [ProblemBody]
    for route in routes:
        kinds += [kind for kind in (route.body, *route.answers.values()) if kind is not None]
    unique = list({id(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=TEMPLATE)
    schema_of = {id(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
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


def _operation(route: Route, schema_of: dict[int, Any]) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": TEMPLATE.format(name="ProblemBody")}}}
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        content: dict[str, Any] | None = None
        if route.raw is not None:
            content = {route.raw: {}}
        elif status != 204:
            content = {"application/json": {"schema": schema_of.get(id(kind), {})}}
        responses[str(status)] = {"description": "done", **({"content": content} if content else {})}
        if route.path == "/v1/events":
            responses[str(status)]["content"]["text/event-stream"] = {}
        if route.path.endswith("/output"):
            responses[str(status)]["content"]["application/x-ndjson"] = {}
    errors = set(route.errors) | {401, 422, 503} | ({403} if route.roles not in (AGENT, BOOTSTRAP, ANYONE) else set())
    if route.body is not None:
        errors |= {400, 413}
    if "{" in route.path:
        errors |= {404}
    for status in sorted(errors):
        responses[str(status)] = {"description": "a problem", "content": problem}
    operation: dict[str, Any] = {
        "operationId": _id(route),
        "summary": route.summary,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
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
            "content": {"application/json": {"schema": schema_of[id(route.body)]}},
        }
    return operation


def _query(route: Route) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(route.query)
    own = next(iter(schema["$defs"].values())) if "$defs" in schema else schema
    return [
        {"name": name, "in": "query", "required": name in own.get("required", []), "schema": _plain(kind)}
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
