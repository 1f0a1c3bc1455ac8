"""Makes the bytes of a case: requests that are almost right, in pieces as a network may deliver them."""

from random import Random

PATHS = (
    b"/healthz", b"/readyz", b"/v1/claims", b"/v1/claims/c-1", b"/v1/claims/c-1/output?follow=true", b"/v1/events",
    b"/v1/pools/x", b"/v1/worker/register", b"/v1/worker/poll", b"/metrics", b"/openapi.json", b"*", b"http://h/healthz",
    b"//", b"/%00%ff", b"h:80",
)  # fmt: skip
METHODS = (*(b"GET", b"POST") * 5, b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT", b"PATCH", b"PRI", b"get")
BODIES = (b"", b"{}", b'{"pool":"x","wait":"0s"}', b"[" * 500, b'{"a":' * 200, b"\xff\xfe", b'{"worker":"w","uid":"u"}', b"null")
# What parsers stumble over, put at any place of a request.
ODD = (
    b"\r\n", b"\n", b"\r", b"\x00", b"\xff", b" ", b"\t", b":", b"\r\n\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1", b"+5",
    b"Content-Length: 18446744073709551616\r\n", b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding : chunked\r\n",
    b"Expect: 100-continue\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"Connection: close\r\n", b"Host: other\r\n",
    b"Authorization: Bearer \r\n", b"Authorization: \xe9\r\n", b"Authorization: Basic eDp5\r\n", b"Accept: text/event-stream\r\n",
    b" folded\r\n", b"X" * 9000, b"a:\r\n" * 300, b"1;x=" + b"y" * 3000 + b"\r\nz\r\n", b"\x16\x03\x01\x02",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip
LONGEST = 300_000  # bytes of one case


def case(chance: Random, tokens: tuple[bytes, ...]) -> list[bytes]:
    """Returns the pieces of one connection. Each is sent on its own."""
    data = b"".join(_request(chance, tokens) for _ in range(chance.choice((1, 1, 1, 2, 5))))
    if chance.random() < 0.05:
        data = chance.randbytes(chance.randrange(1, 2000))
    for _ in range(chance.choice((0, 1, 1, 2, 3, 8))):
        data = _mutated(chance, data)
    data = data[:LONGEST]
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 2, 10))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def _request(chance: Random, tokens: tuple[bytes, ...]) -> bytes:
    body = chance.choice(BODIES)
    version = chance.choice((b" HTTP/1.1", b" HTTP/1.1", b" HTTP/1.0", b""))
    lines = [chance.choice(METHODS) + b" " + chance.choice(PATHS) + version, b"Host: h"]
    if chance.random() < 0.7:
        lines.append(b"Authorization: Bearer " + chance.choice(tokens))
    framing = chance.random()
    if framing < 0.4:
        lines.append(b"Content-Length: %d" % len(body))
    elif framing < 0.7:
        lines.append(b"Transfer-Encoding: chunked")
        trailer = chance.choice((b"", b"", b"X: y\r\n", b"Authorization: Bearer " + chance.choice(tokens) + b"\r\n"))
        body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n" + trailer + b"\r\n"
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _mutated(chance: Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.randrange(1, 40))
    kind = chance.randrange(6)
    if kind == 0:
        return data[:at] + chance.choice(ODD) + data[at:]
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:at] + chance.randbytes(end - at) + data[end:]
    if kind == 3:
        return data[:at] + data[at:end] * chance.choice((2, 10, 1000)) + data[end:]
    if kind == 4:
        return data[:at]
    line = data.find(b"\r\n", at)
    return data[: line + 2] + chance.choice(ODD) + data[line + 2 :] if line >= 0 else data
