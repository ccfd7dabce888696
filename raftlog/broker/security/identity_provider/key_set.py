"""The public keys of an identity provider: a JSON Web Key Set (RFC 7517), of which only what verifies access tokens is
taken.

Keys for encryption, symmetric keys, short RSA keys and unknown types are left out, as RFC 7517 section 5 asks; private
parts of a key are never imported. A set without a usable key is an error, so that a broken file does not lock
everybody out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from raftlog.errors import InvalidRequest

MAX_KEYS = 100
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
"""NIST SP 800-131A forbids shorter keys; longer ones make a verification cost too much."""

_RSA, _P256, _ED25519 = frozenset({"RS256", "PS256"}), frozenset({"ES256"}), frozenset({"EdDSA", "Ed25519"})
ALGORITHMS = _RSA | _P256 | _ED25519
"""The accepted algorithms: signatures only. `none` and the HMAC family are never among them (RFC 8725 section 3.1)."""


class SigningKey(msgspec.Struct, frozen=True):
    """One public key."""

    key_id: str | None
    algorithms: frozenset[str]
    """The algorithms that may be used with it: each key verifies one family only."""
    key: RSAKey | ECKey | OKPKey


class KeySet:
    """The usable keys of a provider."""

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """Return the key with this id for an algorithm; without an id, the only one that fits."""
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.key_id == key_id), None)


def parse_key_set(content: bytes) -> KeySet:
    """Return the usable keys of a JWK Set. Raises `InvalidRequest` if it is none, or has no usable key."""
    try:
        found = msgspec.json.decode(content, type=dict[str, Any]).get("keys")
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _refusal(f"it is no JSON object: {error}") from None
    if not isinstance(found, list) or not all(isinstance(key, dict) for key in found):
        raise _refusal("it has no list 'keys' of objects")
    if len(found) > MAX_KEYS:
        raise _refusal(f"it has {len(found)} keys, more than {MAX_KEYS}")
    keys = [key for jwk in found if (key := _signing_key(jwk)) is not None]
    if not keys:
        raise _refusal(f"none of its {len(found)} keys can verify {', '.join(sorted(ALGORITHMS))}")
    return KeySet(keys)


def _signing_key(jwk: Mapping[str, Any]) -> SigningKey | None:
    """Return the key, or None if it is not one for signatures of access tokens."""
    key_id, algorithm, operations = jwk.get("kid"), jwk.get("alg"), jwk.get("key_ops")
    if not isinstance(key_id, str | None) or not isinstance(algorithm, str | None) or jwk.get("use", "sig") != "sig":
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    try:
        algorithms, key = _imported(jwk)
    except (JoseError, ValueError, TypeError):
        return None
    if algorithm is not None:
        # `EdDSA` and `Ed25519` are names of the same algorithm here (RFC 9864).
        algorithms &= _ED25519 if algorithm in _ED25519 else {algorithm}
    return SigningKey(key_id, algorithms, key) if algorithms else None


def _imported(jwk: Mapping[str, Any]) -> tuple[frozenset[str], RSAKey | ECKey | OKPKey]:
    """Return the algorithms of a key, and its public part. Raises `ValueError` or joserfc's errors."""
    match jwk:
        case {"kty": "RSA", "n": str(modulus), "e": str(exponent)} if _is_long_enough(modulus):
            return _RSA, RSAKey.import_key({"kty": "RSA", "n": modulus, "e": exponent})
        case {"kty": "EC", "crv": "P-256", "x": str(x), "y": str(y)}:
            return _P256, ECKey.import_key({"kty": "EC", "crv": "P-256", "x": x, "y": y})
        case {"kty": "OKP", "crv": "Ed25519", "x": str(x)}:
            return _ED25519, OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": x})
        case _:
            raise ValueError("no key for signatures of access tokens")


def _is_long_enough(modulus: str) -> bool:
    if len(modulus) > MAX_RSA_BITS:
        return False
    try:
        number = int.from_bytes(base64.urlsafe_b64decode(modulus + "=" * (-len(modulus) % 4)))
    except (binascii.Error, ValueError):
        return False
    return MIN_RSA_BITS <= number.bit_length() <= MAX_RSA_BITS


def _refusal(detail: str) -> InvalidRequest:
    return InvalidRequest("invalid_config", f"the identity provider's key set cannot be used: {detail}")
