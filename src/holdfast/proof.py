"""The proof that an answer comes from this installation's servers, and that it answers one request (decision 0021).

A server signs with an Ed25519 key that it derives from the installation's key. An agent gets only the public key, so nothing that
the agent's pod shows can be used to sign.
"""

import base64
import hashlib
import hmac
import re

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

NONCE = "holdfast-nonce"  # the request's header
PROOF = "holdfast-proof"  # the answer's header
_PLAIN_NONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")


def _signed_text(nonce: str, path: str, authorization: str, status: int, body: bytes) -> bytes:
    """Returns what is signed. It contains the request's token as a digest, otherwise a process between agent and server could
    present the answer to another worker as the answer to this one."""
    token, content = (hashlib.sha256(each).hexdigest() for each in (authorization.encode(), body))
    return "\n".join(("holdfast-proof-1", nonce, path, token, str(status), content)).encode()


class Signer:
    """Signs answers. Every replica of an installation derives the same key, so nothing has to be stored or shared."""

    def __init__(self, key: bytes) -> None:
        self._key = SigningKey(hmac.new(key, b"holdfast server proof", hashlib.sha256).digest())

    @property
    def public_key(self) -> str:
        return _text(bytes(self._key.verify_key))

    def sign(self, nonce: str, path: str, authorization: str, status: int, body: bytes) -> str | None:
        """Returns the proof for this answer, or None if the request's nonce is not one."""
        if not _PLAIN_NONCE.fullmatch(nonce):
            return None
        return _text(self._key.sign(_signed_text(nonce, path, authorization, status, body)).signature)


class PublicKey:
    """Checks proofs. Raises ValueError for a text that is not a public key."""

    def __init__(self, text: str) -> None:
        self._key = VerifyKey(_data(text))

    def verify(self, proof: str, nonce: str, path: str, authorization: str, status: int, body: bytes) -> bool:
        try:
            self._key.verify(_signed_text(nonce, path, authorization, status, body), _data(proof))
        except (BadSignatureError, ValueError, TypeError):
            return False
        return True


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _data(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
