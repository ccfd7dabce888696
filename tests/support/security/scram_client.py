"""The client's side of SCRAM, written from RFC 5802 without the product's code."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One exchange."""

    def __init__(self, name: str, password: bytes, nonce: str, digest: str = "sha512", header: str = "n,,") -> None:
        self.password = password
        self.nonce = nonce
        self.digest = digest
        self.header = header
        self.bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, answer: bytes) -> bytes:
        nonce, salt, iterations = (attribute[2:] for attribute in answer.decode().split(","))
        assert nonce.startswith(self.nonce) and len(nonce) > len(self.nonce)
        salted = hashlib.pbkdf2_hmac(self.digest, self.password, base64.b64decode(salt), int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        unproved = f"c={base64.b64encode(self.header.encode()).decode()},r={nonce}"
        message = f"{self.bare},{answer.decode()},{unproved}".encode()
        signature = self._hmac(hashlib.new(self.digest, client_key).digest(), message)
        self.server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def believes(self, answer: bytes) -> bool:
        return answer == b"v=" + base64.b64encode(self.server_signature)

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self.digest).digest()
