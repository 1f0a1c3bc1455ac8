"""A browser shows a session with a cookie. Other pages, other sessions and the served process itself must not profit from it."""

import asyncio
import json
from typing import Any

import h11
import pytest

from fronted import KEY, Client, Front, fronted
from holdfast.agent.proxy import Proxy
from holdfast.agent.proxy_cookies import is_from_own_page
from holdfast.agent.upstream import Port

PAGE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "none"}
OPEN = f"/a?x=1&holdfast_credential={KEY}&y=2"
WEBSOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}


async def shows_the_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the request that it received, and tries to set cookies."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    if "Upgrade: websocket" in head:
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        return
    first, *lines = head.rstrip().split("\r\n")
    body = json.dumps({"target": first.split()[1], "headers": [line.split(": ", 1) for line in lines]}).encode()
    cookies = ["mine=1; Path=/", "holdfast_session_0000000000000000=evil", "HOLDFAST_session_x=evil", "=holdfast_session_y=evil"]
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n" + "".join(f"Set-Cookie: {each}\r\n" for each in cookies)
    writer.write(answer.encode() + b"\r\n" + body)


async def ask(front: Front, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Sends one request. Returns the status, all headers and the body."""
    client: Client = await front.dial()
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in ({"Host": "h"} | headers).items())]
    await client.send("\r\n".join([*lines, "", ""]).encode())
    head, *fields = (await client.until(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    pairs = [(name.lower(), value) for name, _, value in (field.partition(": ") for field in fields)]
    return int(head.split()[1]), pairs, await client.reader.readexactly(int(dict(pairs).get("content-length", 0)))


async def cookie(front: Front) -> str:
    """Opens the session as a browser, and returns the cookie that it got."""
    status, headers, _ = await ask(front, OPEN, **PAGE)
    assert status == 303
    return dict(headers)["set-cookie"].partition(";")[0]


def received(body: bytes) -> dict[str, Any]:
    shown = json.loads(body)
    return {"target": shown["target"], **{name.lower(): value for name, value in shown["headers"]}}


async def test_the_credential_does_not_stay_in_the_address() -> None:
    async with fronted(shows_the_request) as front:
        status, headers, _ = await ask(front, OPEN, **PAGE)
        fields = dict(headers)
        assert (status, fields["location"], fields["referrer-policy"], fields["cache-control"]) == (
            303, "/a?x=1&y=2", "no-referrer", "no-store",
        )  # fmt: skip
        pair, *attributes = fields["set-cookie"].split("; ")
        assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
        assert KEY not in pair
        assert front.upstreams == 0, "the served process does not see that request"
        status, _, body = await ask(front, fields["location"], Cookie=f"theirs=1; {pair}; other=2", **PAGE)
        assert (status, received(body)["target"]) == (200, "/a?x=1&y=2")
        assert received(body)["cookie"] == "theirs=1; other=2"


async def test_the_served_process_gets_no_cookie_of_any_session_and_cannot_set_one() -> None:
    async with fronted(shows_the_request) as front:
        own = await cookie(front)
        _, headers, body = await ask(front, Cookie=f"{own}; holdfast_session_0123456789abcdef=another", X=own)
        assert "cookie" not in received(body)
        assert "x" not in received(body), "the cookie's value is not passed in another header either"
        assert [value for name, value in headers if name == "set-cookie"] == ["mine=1; Path=/"]


async def test_the_cookie_of_another_claim_opens_nothing_and_the_end_of_the_claim_ends_it() -> None:
    async with fronted(shows_the_request) as front:
        own = await cookie(front)
        name, _, value = own.partition("=")
        assert (await ask(front, Cookie=f"{name}={value[::-1]}"))[0] == 401
        assert (await ask(front, Cookie=f"holdfast_session_0123456789abcdef={value}"))[0] == 401
        front.proxy.close()
        front.proxy.open("the next claim's")
        assert (await ask(front, Cookie=own))[0] == 401
        status, headers, _ = await ask(front, "/?holdfast_credential=the%20next%20claim's", **PAGE)
        assert status == 303
        assert dict(headers)["set-cookie"].partition("=")[0] != name, "claims of one host do not overwrite each other's cookie"


async def test_a_second_cookie_of_the_same_name_does_not_lock_the_holder_out() -> None:
    async with fronted(shows_the_request) as front:
        own = await cookie(front)
        assert (await ask(front, Cookie=f"{own.partition('=')[0]}=evil; {own}"))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 200),  # a page with the policy no-referrer
        ({"Origin": "http://h"}, 200),
        ({"Origin": "http://h:81"}, 403),
        ({"Origin": "http://evil"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 200),
    ],
)
async def test_only_the_sessions_own_pages_use_the_cookie(headers: dict[str, str], status: int) -> None:
    async with fronted(shows_the_request) as front:
        own = await cookie(front)
        assert (await ask(front, Cookie=own, **headers))[0] == status


@pytest.mark.parametrize(
    ("origin", "status"), [({"Origin": "http://h"}, 101), ({"Origin": "http://h:81"}, 403), ({}, 403)], ids=str
)
async def test_a_page_of_another_origin_opens_no_websocket(origin: dict[str, str], status: int) -> None:
    async with fronted(shows_the_request) as front:
        own = await cookie(front)
        assert (await ask(front, Cookie=own, **WEBSOCKET, **origin))[0] == status
        assert front.upstreams == (status == 101)


async def test_a_method_that_may_change_something_needs_the_sessions_own_origin() -> None:
    async with fronted(shows_the_request) as front:
        own = await cookie(front)
        assert (await ask(front, method="POST", Cookie=own))[0] == 403
        assert (await ask(front, method="POST", Cookie=own, Origin="http://h"))[0] == 200


async def test_another_user_cannot_listen_where_a_browser_looks_for_the_session_first() -> None:
    """A browser tries ::1 first for c-1.localhost, and would send the credential there."""
    async with fronted(shows_the_request) as front:
        if len(front.proxy._servers) == 1:
            pytest.skip("this machine has no ::1")
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(lambda *_: None, "::1", front.port)
        client = Client(*await asyncio.open_connection("::1", front.port))
        await client.send(b"GET / HTTP/1.1\r\nHost: c-1.localhost\r\n\r\n")
        assert (await client.answer())[0] == 401
        client.writer.close()


async def test_a_port_on_which_another_user_waits_for_browsers_is_not_used() -> None:
    try:
        squatter = await asyncio.start_server(lambda *_: None, "::1", 0)
    except OSError:
        pytest.skip("this machine has no ::1")
    one = Proxy(Port(("127.0.0.1",), 1))
    with pytest.raises(OSError, match="in use"):
        await one.listen("127.0.0.1", squatter.sockets[0].getsockname()[1])
    squatter.close()
    one.stop()


@pytest.mark.parametrize("path", ["//evil/x", "/\\evil/x"])
async def test_the_redirect_never_leads_to_another_host(path: str) -> None:
    async with fronted(shows_the_request) as front:
        status, headers, _ = await ask(front, f"{path}?holdfast_credential={KEY}", **PAGE)
        assert (status, dict(headers)["location"]) == (303, f"/.{path}")


async def test_a_link_on_another_site_goes_on_by_a_page_that_runs_no_script_of_the_link() -> None:
    """A browser sends a strict cookie with requests of the session's own page, but not after a redirect from another site."""
    async with fronted(shows_the_request) as front:
        path = f'/a?"><script>&holdfast_credential={KEY}'
        status, headers, body = await ask(front, path, **PAGE | {"Sec-Fetch-Site": "cross-site"})
        assert (status, dict(headers)["referrer-policy"], "location" in dict(headers)) == (200, "no-referrer", False)
        assert body.endswith(b'content="0;url=/a?&quot;&gt;&lt;script&gt;">')
        assert KEY.encode() not in body


@pytest.mark.parametrize(
    "headers",
    [{}, {"Accept": "*/*"}, {"Sec-Fetch-Mode": "cors", "Accept": "text/html"}, PAGE | {"Sec-Fetch-Dest": "iframe"}],
    ids=["curl", "a library", "fetch", "a frame"],
)
async def test_other_clients_use_the_credential_in_the_address_as_before(headers: dict[str, str]) -> None:
    async with fronted(shows_the_request) as front:
        status, answered, body = await ask(front, OPEN, **headers)
        assert (status, received(body)["target"]) == (200, "/a?x=1&y=2")
        assert [value for name, value in answered if name == "set-cookie"] == ["mine=1; Path=/"]


async def test_an_old_browser_is_known_by_what_it_accepts() -> None:
    async with fronted(shows_the_request) as front:
        assert (await ask(front, OPEN, Accept="text/html,*/*;q=0.8"))[0] == 303


async def test_a_browser_that_sends_the_credential_in_the_header_gets_the_cookie_once() -> None:
    async with fronted(shows_the_request) as front:
        bearer = {"Authorization": f"Bearer {KEY}"} | PAGE
        status, headers, _ = await ask(front, **bearer)
        cookies = [value for name, value in headers if name == "set-cookie"]
        assert (status, len(cookies)) == (200, 2)
        own = cookies[1].partition(";")[0]
        assert len([name for name, _ in (await ask(front, Cookie=own, **bearer))[1] if name == "set-cookie"]) == 1
        assert (await ask(front, Cookie=own))[0] == 200


async def test_a_request_with_the_cookie_waits_for_the_decision_about_its_claim() -> None:
    """The agent of a session on Kubernetes may restart while a browser shows the session."""
    async with fronted(shows_the_request) as front:
        own = await cookie(front)
        front.proxy.close()
        front.proxy.expect(KEY)
        waiting = asyncio.create_task(ask(front, Cookie=own))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        front.proxy.open(KEY)
        assert (await waiting)[0] == 200


async def test_the_applications_own_bearer_token_passes_beside_the_cookie() -> None:
    async with fronted(shows_the_request) as front:
        _, _, body = await ask(front, Cookie=await cookie(front), Authorization="Bearer theirs")
        assert received(body)["authorization"] == "Bearer theirs"


def test_an_origin_without_a_host_is_not_the_page_of_a_request_without_a_host() -> None:
    """Both would be compared as empty texts. A sandboxed frame sends the origin `null`."""
    for origin in (b"null", b"http://", b"file://"):
        assert not is_from_own_page(h11.Request(method="POST", target="/", headers=[(b"Host", b""), (b"Origin", origin)]))
