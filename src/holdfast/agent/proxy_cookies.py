"""Let a browser show a session: the cookie that it gets for the credential, and which requests may use that cookie.

A browser cannot add the credential to the requests of a page, so a navigation with the credential gets a cookie instead. The
cookie is derived from the credential, and ends with it. Cookies ignore ports, so all sessions of one host receive each other's
cookies. Therefore each claim has another name for it, and the proxy forwards no cookie of this kind (decision 0022).
"""

import hashlib
import hmac
import html

import h11
import msgspec

from .proxy_headers import COOKIE_PREFIX, Headers, Presented, wants_websocket, without_credential

OWN = (b"same-origin", b"none")  # values of Sec-Fetch-Site: the session's own page, or an address that the user typed or opened


class Access(msgspec.Struct, frozen=True):
    """What opens the port for one claim: its credential, or the cookie that was made of it. Only digests of both are stored."""

    credential: bytes
    name: bytes
    cookie: bytes

    @classmethod
    def of(cls, credential: str) -> "Access":
        name, value = _cookie(credential.encode())
        return cls(_digest(credential.encode()), name, _digest(value))

    def opened_by(self, shown: Presented) -> bool:
        """Returns whether the request may pass, and stores in `shown` what allows it. Each comparison takes constant time."""
        shown.matching = [each for each in shown.credentials if hmac.compare_digest(_digest(each), self.credential)]
        shown.cookies = [
            value for name, value in shown.named if name == self.name and hmac.compare_digest(_digest(value), self.cookie)
        ]
        return bool(shown.matching or shown.cookies)


def set_cookie(credential: bytes) -> tuple[bytes, bytes]:
    """Returns the header that gives the cookie to the browser. Without an age the browser does not store it on disk."""
    name, value = _cookie(credential)
    return b"Set-Cookie", name + b"=" + value + b"; Path=/; HttpOnly; SameSite=Strict"


def is_navigation(request: h11.Request) -> bool:
    """Returns whether a browser opens a page in a window with this request. Without the headers of a new browser, a client that
    wants HTML counts as one."""
    if request.method != b"GET" or wants_websocket(request):
        return False
    fields = dict(request.headers)
    mode = fields.get(b"sec-fetch-mode")
    if mode is None:
        return b"text/html" in fields.get(b"accept", b"")
    return mode == b"navigate" and fields.get(b"sec-fetch-dest", b"document") == b"document"


def is_from_own_page(request: h11.Request) -> bool:
    """Returns whether the session's own page, or the user, sent the request. Pages of other origins must not use the cookie.

    A page cannot set Sec-Fetch-Site or Origin. Browsers send Sec-Fetch-Site to loopback and over HTTPS, and Origin with every
    WebSocket and with every method that may change something. SameSite keeps the rest away if it comes from another site.
    """
    fields = dict(request.headers)
    site = fields.get(b"sec-fetch-site")
    if site is not None:
        return site in OWN
    origin = fields.get(b"origin")
    if origin is None:
        return request.method in (b"GET", b"HEAD") and not wants_websocket(request)
    scheme, _, host = origin.partition(b"://")
    return scheme in (b"http", b"https") and bool(host) and host.lower() == fields.get(b"host", b"").lower()


def continued(request: h11.Request, credential: bytes) -> tuple[int, Headers, bytes]:
    """Returns the answer to a navigation with the credential in its address: a cookie, and the address without the credential."""
    target = without_credential(request.target)
    if target[1:2] in (b"/", b"\\"):
        target = b"/." + target  # two slashes at the start would lead to another host
    headers = [set_cookie(credential), (b"Referrer-Policy", b"no-referrer"), (b"Cache-Control", b"no-store")]
    if dict(request.headers).get(b"sec-fetch-site", b"none") in OWN:
        return 303, [*headers, (b"Location", target)], b""
    # After a link on another site, a browser would not send a strict cookie with the redirected request. This page sends it.
    body = f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(target.decode("latin-1"))}">'.encode("latin-1")
    return 200, [*headers, (b"Content-Type", b"text/html; charset=iso-8859-1")], body


def _cookie(credential: bytes) -> tuple[bytes, bytes]:
    def part(purpose: bytes) -> bytes:
        return hmac.new(credential, purpose, hashlib.sha256).hexdigest().encode()

    return COOKIE_PREFIX + part(b"cookie name")[:16], part(b"cookie value")


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
