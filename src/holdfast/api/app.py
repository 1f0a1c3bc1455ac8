"""The ASGI application: serves the table of routes."""

import functools
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from . import agent_reports, agents, apply, claims, history, inputs, output, pools, recovery, system, tenants, tokens, workers
from .context import Context
from .openapi import document, for_agents
from .problems import Problem, encode
from .routes import ANYONE, Call, Route, answered, note_authenticated, prove, serve

Endpoint = Callable[[Request], Awaitable[Response]]
REFUSED = {
    404: ("not-found", "there is no such path; see /openapi.json"),
    405: ("method-not-allowed", "this path has other methods"),
}


async def described(context: Context, _call: Call) -> Response:
    return Response(_document(context.version, agents=False), media_type="application/json")


async def described_for_agents(context: Context, _call: Call) -> Response:
    return Response(_document(context.version, agents=True), media_type="application/json")


@functools.cache
def _document(version: str, *, agents: bool) -> bytes:
    return encode(document([route for route in ROUTES if for_agents(route) == agents], version))


ROUTES: list[Route] = [
    *claims.ROUTES,
    *output.ROUTES,
    *inputs.ROUTES,
    *pools.ROUTES,
    *workers.ROUTES,
    *tenants.ROUTES,
    *apply.ROUTES,
    *history.ROUTES,
    *system.ROUTES,
    *recovery.ROUTES,
    *tokens.ROUTES,
    *agents.ROUTES,
    *agent_reports.ROUTES,
    Route("GET", "/openapi.json", "This document", described, roles=ANYONE),
    Route("GET", "/openapi-agents.json", "The document of the worker protocol", described_for_agents, roles=ANYONE),
]


def application(context: Context) -> Starlette:
    by_path: dict[str, dict[str, Endpoint]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = serve(route, context)
    routes = [StarletteRoute(path, _one_of(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route(context)})  # type: ignore[dict-item]
    app.router.redirect_slashes = False  # a redirect would contain the caller's Host header, which may be forged
    return app


def _one_of(endpoints: dict[str, Endpoint]) -> Endpoint:
    """Combines all methods of a path into one endpoint, so that a 405 lists all of them in its Allow header."""

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _no_such_route(context: Context) -> Callable[[Request, HTTPException], Awaitable[Response]]:
    """Returns the handler for unknown paths and methods. It needs a valid token, so that others cannot find out which paths
    exist."""

    async def refuse(request: Request, error: HTTPException) -> Response:
        note_authenticated(request, await context.auth.anyone(request.headers.get("authorization")))
        code, detail = REFUSED.get(error.status_code, ("error", str(error.detail)))
        return Problem(error.status_code, code, detail, headers=dict(error.headers or {})).response()

    async def answer(request: Request, error: HTTPException) -> Response:
        return prove(context, request, await answered(context, "no route", refuse(request, error)))

    return answer
