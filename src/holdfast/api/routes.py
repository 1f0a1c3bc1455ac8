"""The shape of every route: roles, request and answers. Requests are served and documented from the same table."""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..model.mistakes import MOST, reported
from ..model.pool import FieldProblem
from ..model.shown import ONE_LINE_MUST, UNSAFE
from ..ports.cluster import AgentIdentity, ClusterUnavailable
from ..ports.store import StoreUnavailable, Unstorable
from ..proof import NONCE, PROOF
from .auth import CHALLENGE, Caller, bearer
from .problems import Problem, encode, field_problems, invalid, refused, unavailable

if TYPE_CHECKING:
    from .context import Context
    from .turns import Turn

log = structlog.get_logger()
T = TypeVar("T")
BODY_LIMIT = 64 * 1024
DEPTH_LIMIT = 100  # nested objects and lists; every program that reads stored values must be able to decode them
PATH_LIMIT = 200  # characters of a name in a path; our own names are less than half as long
QUERY_LIMIT = 1000  # characters of a query's value; cursors are the longest values
ALL = ("admin", "operator", "tenant")
OPERATORS = ("admin", "operator")
ADMINS = ("admin",)
SCRAPERS = (*OPERATORS, "metrics")  # Prometheus has a role of its own, so that its token can read nothing else
AGENT = ("agent",)  # a signed agent token
BOOTSTRAP = ("bootstrap",)  # the cluster's token of an agent's pod
ANYONE = ("anyone",)  # any valid token, also an agent's, for routes that reveal nothing about tenants
# Text that is shown in lists, logs and terminals must be one line without control characters (model/shown.py).
PRINTED = rf"^[^{UNSAFE}]*$(?!\n)"
ONE_LINE = {"must": ONE_LINE_MUST.removeprefix("must ")}
Line = Annotated[str, msgspec.Meta(max_length=500, pattern=PRINTED, extra=ONE_LINE)]
AGENT_PATHS = "/v1/worker/"
JSON = {"Content-Type": "application/json"}
GONE = 499  # the status under which requests are counted whose client went away; it is never sent


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class Because(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an operator's action: the reason, which is stored in the history."""

    reason: Annotated[Line, msgspec.Meta(min_length=1)]


def page(items: list[T], query: PageQuery, name: Callable[[T], str]) -> tuple[list[T], str | None]:
    """Returns a page of the items, ordered by name, and the next cursor. For lists that are short enough to be read whole."""
    ordered = sorted(items, key=name)
    rest = [item for item in ordered if query.cursor is None or name(item) > query.cursor]
    shown = rest[: query.limit]
    return shown, name(shown[-1]) if len(rest) > len(shown) else None


@dataclass(frozen=True)
class Call:
    """One request after authentication and decoding."""

    request: Request
    query: Any
    body: Any
    caller: Caller
    agent: AgentIdentity
    turn: "Turn | None" = None

    def only_waits(self) -> None:
        """Lets the tenant's next request begin, because this one only waits from now on."""
        if self.turn is not None:
            self.turn.give_back()

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    summary: str
    handler: Callable[["Context", Call], Awaitable[Response]]
    roles: tuple[str, ...] = ALL  # never empty, because every route needs a token
    names: Any = str  # the type of the first name in the path; only for the OpenAPI document
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    body_limit: int = BODY_LIMIT  # bytes
    answers: dict[int, Any] = field(default_factory=lambda: {200: None})  # a tuple: what operators get, what tenants get
    errors: tuple[int, ...] = ()  # in addition to those that openapi.py derives from the route
    urgent: bool = False  # needs no turn (turns.py): a renewal that waits behind its tenant's other requests could come too late
    raw: str | None = None  # the media type of an answer that is not JSON

    @property
    def needs_body(self) -> bool:
        """Returns whether an empty body is refused. If every field has a default, an empty body means all defaults, except for
        PUT, where that would reset what is stored."""
        return self.body is not None and (
            self.method == "PUT" or any(each.required for each in msgspec.structs.fields(self.body))
        )


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, {**JSON, **(headers or {})})


def empty() -> Response:
    return Response(status_code=204)


NO_CALLER = Caller("", "tenant", "")
NO_AGENT = AgentIdentity("", "")


def serve(route: Route, context: "Context") -> Callable[[Request], Awaitable[Response]]:
    """Returns the endpoint of a route. It authenticates, decodes and calls the handler; every failure becomes a problem."""
    counter = context.metrics.requests

    async def endpoint(request: Request) -> Response:
        response = prove(context, request, await answered(context, route.path, handle(request)))
        counter.labels(f"{route.method} {route.path}", response.status_code).inc()
        return response

    async def handle(request: Request) -> Response:
        caller, agent, holder = NO_CALLER, NO_AGENT, None
        header = request.headers.get("authorization")
        if route.roles == AGENT:
            agent = context.auth.agent(header)
        elif route.roles == BOOTSTRAP:
            agent = await _verified(context, bearer(header))
        elif route.roles == ANYONE:
            holder = await context.auth.anyone(header)
        else:
            holder = caller = await context.auth.caller(header)
        note_authenticated(request, holder)
        if caller is not NO_CALLER and caller.role not in route.roles:
            raise Problem(403, "forbidden", f"this needs the role {' or '.join(route.roles)}; yours is {caller.role}")
        for value in request.path_params.values():
            if "\x00" in str(value) or len(str(value)) > PATH_LIMIT:
                raise Problem(404, "not-found", "no such name")
        query = decode_query(request, route.query)
        body = await decode_body(request, route) if route.body is not None else None
        # The turn comes after the body, otherwise a slow sender would keep its tenant's turns.
        turn = await context.turns.take(caller) if caller is not NO_CALLER and not route.urgent else None
        try:
            return await route.handler(context, Call(request, query, body, caller, agent, turn))
        finally:
            if turn is not None:
                turn.give_back()

    return endpoint


def prove(context: "Context", request: Request, response: Response) -> Response:
    """Adds the server's proof to the answer of an agent's request. This includes errors, because an agent also acts on those. A
    request without a token is answered 401 with a proof, so that an agent can check the server before it sends its token."""
    nonce, path = request.headers.get(NONCE), request.url.path
    if nonce is not None and path.startswith(AGENT_PATHS):
        token = request.headers.get("authorization", "")
        if (proof := context.auth.signer.sign(nonce, path, token, response.status_code, bytes(response.body))) is not None:
            response.headers[PROOF] = proof
    return response


def note_authenticated(request: Request, holder: Caller | None) -> None:
    """Notes at the connection that a request on it had a valid token, so that it is kept when strangers' connections are closed.
    `holder` is None for agents. Refuses the request if its tenant has too many connections. A simulation has no connections."""
    tenant = holder.tenant if holder is not None and not holder.trusted else None
    connection = request.scope.get("holdfast.connection")
    if connection is not None and not connection.authenticated(tenant):
        detail = "tenants have too many requests in progress here; use fewer connections at the same time"
        raise Problem(429, "too-many", detail, headers={"Retry-After": "1", "Connection": "close"})


async def _verified(context: "Context", token: str) -> AgentIdentity:
    """Returns the pod of a cluster's token. This comes before the body is read, because the sender is a stranger until then."""
    if (identity := await context.cluster.verify(token)) is None:
        raise Problem(401, "unauthenticated", "the token is forged, expired or another pod's", headers=CHALLENGE)
    return identity


async def answered(context: "Context", route: str, work: Awaitable[Response]) -> Response:
    """Returns the answer of `work`, or the problem for the error that it raised."""
    try:
        return await work
    except Problem as problem:
        return problem.response()
    except Unstorable:
        return refused("body", "the store cannot keep this request: a value in it is not valid for Postgres").response()
    except ClientDisconnect:
        context.metrics.disconnects.inc()
        return Response(status_code=GONE)
    except StoreUnavailable:
        context.metrics.store_errors.inc()
        return unavailable("the store is not available").response()
    except ClusterUnavailable:
        return unavailable("the cluster is not available").response()
    except Exception:
        log.exception("a request failed", route=route)
        return Problem(500, "internal", "this is a defect of Holdfast; the replica's log has the details").response()


def decode_query(request: Request, kind: type[msgspec.Struct]) -> Any:
    given: dict[str, str] = {}
    found: list[FieldProblem] = []
    for name, value in request.query_params.multi_items():
        if len(name) > QUERY_LIMIT:
            found.append(FieldProblem("query", f"has a name longer than {QUERY_LIMIT} characters"))
        elif name in given:
            found.append(FieldProblem(name, "is given twice"))
        elif len(value) > QUERY_LIMIT:
            found.append(FieldProblem(name, f"is longer than {QUERY_LIMIT} characters"))
        elif "\x00" in value:
            found.append(FieldProblem(name, "must not contain a NUL character"))
        given[name] = value
    if found:
        raise field_problems(found)
    try:
        query = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error, given, kind, lax=True) from None
    # msgspec reads `state=null` as None, which would mean "no filter" instead of an unknown state.
    if found := [FieldProblem(name, "must not be null; leave it out") for name in given if getattr(query, name) is None]:
        raise field_problems(found)
    return query


async def decode_body(request: Request, route: Route) -> Any:
    raw = await read_body(request, route.body_limit)
    if not raw and route.needs_body:
        raise refused("body", "is required")
    try:
        body = msgspec.json.decode(raw or b"{}", type=route.body)
    except msgspec.ValidationError as error:
        raise _all_mistakes(error, raw, route) from None
    except RecursionError:
        raise refused("body", f"is nested deeper than {DEPTH_LIMIT}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The reason names a position only, so that the answer does not repeat what the user sent.
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "is not UTF-8"
        raise Problem(400, "malformed", "the body is not JSON", [FieldProblem("body", reason)]) from None
    suspicious = _SUSPICIOUS.search(raw) or raw.count(b"[") + raw.count(b"{") > DEPTH_LIMIT
    if suspicious and (found := list(islice(_unstorable(msgspec.to_builtins(body), "", 0), MOST))):
        raise field_problems(found)
    return body


def _all_mistakes(error: msgspec.ValidationError, raw: bytes, route: Route) -> Problem:
    try:
        value = msgspec.json.decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # The body cannot be read whole, for example because of a number that is out of range, so one mistake is known.
        one = reported(error)
        return refused(one.field or "body", one.reason)
    return invalid(error, value, route.body)


async def read_body(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "0")
    if re.fullmatch(r"[0-9]{1,15}", length) and int(length) > limit:
        raise Problem(413, "too-large", f"the body is larger than {limit} bytes")
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Problem(413, "too-large", f"the body is larger than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


_SUSPICIOUS = re.compile(rb"\\u0000|[0-9]{19}")


def _unstorable(value: Any, path: str, depth: int) -> Iterator[FieldProblem]:
    """Yields the JSON values that Postgres cannot store or that some programs cannot read. Errors show names, never values."""
    where = path or "body"
    if depth > DEPTH_LIMIT:
        yield FieldProblem(where[:QUERY_LIMIT], f"is nested deeper than {DEPTH_LIMIT}")
    elif isinstance(value, str):
        if "\x00" in value:
            yield FieldProblem(where, "must not contain a NUL character")
    elif isinstance(value, dict):
        for key, item in value.items():
            if "\x00" in key:
                yield FieldProblem(where, "has a name with a NUL character in it")
            else:
                yield from _unstorable(item, f"{path}.{key}".removeprefix("."), depth + 1)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _unstorable(item, f"{path}[{number}]", depth + 1)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield FieldProblem(where, "is a number beyond 64 bits")
