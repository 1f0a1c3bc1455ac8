"""Encrypt the secrets of a claim before they are stored, so that the database and its backups never contain them (decision 0026)."""

import binascii
import hashlib
import hmac

import msgspec
from nacl.exceptions import CryptoError
from nacl.secret import Aead

FORMAT = "1."  # begins every encrypted text, so that a later release can recognize this format
HASH_DIGITS = 32


class CannotDecrypt(Exception):
    """The stored secrets are not what this installation encrypted for this claim."""

    def __init__(self) -> None:
        super().__init__("its secrets cannot be decrypted: the installation's key was changed, or the stored row; claim again")


class Cipher:
    """Encrypts with keys that are derived from the installation's key. Each claim has its own key, and the claim's id is
    authenticated, so that the encrypted secrets of one claim cannot be used for another."""

    def __init__(self, key: bytes) -> None:
        self._secrets = _derived(key, b"holdfast: secrets of claims")
        self._hashes = _derived(key, b"holdfast: hashes of requests")

    def encrypt(self, claim: str, secrets: dict[str, str]) -> str:
        hidden = self._of(claim).encrypt(msgspec.json.encode(secrets), claim.encode())  # begins with a random nonce of 24 bytes
        return FORMAT + binascii.b2a_base64(hidden, newline=False).decode()

    def decrypt(self, claim: str, stored: str) -> dict[str, str]:
        """Returns the secrets. Raises CannotDecrypt."""
        if not stored.startswith(FORMAT):
            raise CannotDecrypt
        try:
            data = binascii.a2b_base64(stored.removeprefix(FORMAT), strict_mode=True)
            shown = self._of(claim).decrypt(data, claim.encode())
        except (CryptoError, ValueError):  # the second is raised for text that is not base64, and for less than a nonce
            raise CannotDecrypt from None
        return msgspec.json.decode(shown, type=dict[str, str])

    def hash(self, request: bytes) -> str:
        """Returns a hash that shows nothing about the request without the installation's key. A plain hash would reveal a short
        secret to anybody who tries all short secrets."""
        return hmac.new(self._hashes, request, hashlib.sha256).hexdigest()[:HASH_DIGITS]

    def _of(self, claim: str) -> Aead:
        return Aead(_derived(self._secrets, claim.encode()))


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.new(key, purpose, hashlib.sha256).digest()
