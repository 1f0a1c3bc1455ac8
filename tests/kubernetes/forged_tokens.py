"""Makes tokens of pods with other contents, signed with the API server's own key."""

import base64
import json
import subprocess
from typing import Any

from holdfast_testcluster.access import Access

HALF = 32  # bytes of each of an ES256 signature's two numbers


def content(token: str) -> dict[str, Any]:
    """Returns the contents of a token."""
    return dict(json.loads(_decoded(token.split(".")[1])))


def signed_again(access: Access, token: str, **arguments: Any) -> str:
    """Returns the token with these contents replaced. The API server accepts it, because it is signed with the right key."""
    head = token.split(".")[0]
    assert json.loads(_decoded(head))["alg"] == "ES256"
    body = f"{head}.{_encoded(json.dumps(content(token) | arguments).encode())}"
    key = str(access.folder / "service-accounts.key")
    done = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=body.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    return f"{body}.{_encoded(_plain(done.stdout))}"


def _plain(signature: bytes) -> bytes:
    """Returns an ES256 signature as tokens have it: two bare numbers. openssl wraps them in a DER sequence of two integers."""
    first = 4 + signature[3]
    numbers = signature[4:first], signature[first + 2 :]
    return b"".join(number.lstrip(b"\0").rjust(HALF, b"\0") for number in numbers)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
