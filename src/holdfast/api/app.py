"""The ASGI application: the table of doors, served."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from . import agents, claims, pools, system
from .context import Context
from .doors import Door, serve
from .openapi import document
from .problems import Problem, encode

DOORS: list[Door] = [*claims.DOORS, *pools.DOORS, *system.DOORS, *agents.DOORS]


def application(context: Context) -> Starlette:
    routes = [Route(door.path, serve(door, context), methods=[door.method]) for door in DOORS]
    described = encode(document(DOORS, context.version))

    async def openapi(_request: Request) -> Response:
        return Response(described, media_type="application/json")

    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: _http})  # type: ignore[dict-item]


async def _http(_request: Request, error: HTTPException) -> Response:
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "error")
    detail = {404: "there is no such path; see /openapi.json", 405: "this path has other methods"}.get(
        error.status_code, str(error.detail)
    )
    return Problem(error.status_code, code, detail, headers=dict(error.headers or {})).response()
