"""The ASGI application: the table of doors, served."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from . import agents, claims, history, output, pools, system, tokens
from .context import Context
from .doors import Door, serve
from .openapi import document
from .problems import Problem, encode

Endpoint = Callable[[Request], Awaitable[Response]]
DOORS: list[Door] = [*claims.DOORS, *output.DOORS, *pools.DOORS, *history.DOORS, *system.DOORS, *tokens.DOORS, *agents.DOORS]


def application(context: Context) -> Starlette:
    ways: dict[str, dict[str, Endpoint]] = {}
    for door in DOORS:
        ways.setdefault(door.path, {})[door.method] = serve(door, context)
    routes = [Route(path, _one_of(endpoints), methods=list(endpoints)) for path, endpoints in ways.items()]
    described = encode(document(DOORS, context.version))

    async def openapi(_request: Request) -> Response:
        return Response(described, media_type="application/json")

    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http})  # type: ignore[dict-item]
    app.router.redirect_slashes = False  # a redirect would name whatever host the caller wrote
    return app


def _one_of(endpoints: dict[str, Endpoint]) -> Endpoint:
    """One route a path, so that a refused method hears of all the others."""

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


async def _http(_request: Request, error: HTTPException) -> Response:
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "error")
    detail = {404: "there is no such path; see /openapi.json", 405: "this path has other methods"}.get(
        error.status_code, str(error.detail)
    )
    return Problem(error.status_code, code, detail, headers=dict(error.headers or {})).response()
