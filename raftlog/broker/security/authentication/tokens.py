"""Tokens: long-lived credentials of a user that the quorum stores as a digest.

The text is `rlt_`, the token's id, `_`, and 256 random bits. The prefix lets scanners of source code and logs find a
leaked token; the id names it in lists and logs without giving it away. The random part makes a fast digest enough: it
cannot be guessed, so it needs no argon2.

A token is looked up by the SHA-256 of its whole text. The time of that lookup tells nothing of use: an attacker cannot
choose the digest, and a digest that shares its first bytes with a stored one does not help to find the text.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable

import msgspec

from raftlog.errors import InvalidRequest
from raftlog.security.secrets import Secret

PREFIX = "rlt_"
ID_CHARACTERS = 12
SECRET_BYTES = 32
"""256 random bits, which base64url writes with 43 characters."""
TOKEN_CHARACTERS = len(PREFIX) + ID_CHARACTERS + 1 + 43

_ID_BYTES = 8
_FORM = re.compile(rf"{PREFIX}([a-z2-7]{{{ID_CHARACTERS}}})_[A-Za-z0-9_-]{{43}}")


class NewToken(msgspec.Struct, frozen=True):
    """A token that was just made. Its text is shown to its owner once and stored nowhere."""

    token_id: str
    text: Secret
    digest: bytes


def new_token(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> NewToken:
    """Return a new token. `random_bytes` must be a secure source."""
    token_id = base64.b32encode(random_bytes(_ID_BYTES)).decode().lower()[:ID_CHARACTERS]
    secret = base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).decode().rstrip("=")
    text = Secret(f"{PREFIX}{token_id}_{secret}")
    return NewToken(token_id, text, digest_of(text))


def is_token(text: Secret) -> bool:
    """Return whether a credential claims to be a token rather than an access token."""
    return text.reveal().startswith(PREFIX)


def id_of(text: Secret) -> str:
    """Return the id of a token. Raises `InvalidRequest` for a text of another form, without the text."""
    match = _FORM.fullmatch(text.reveal())
    if match is None:
        raise InvalidRequest(
            "invalid_request",
            f"a token has {TOKEN_CHARACTERS} characters: '{PREFIX}', an id, '_' and a secret; it may be incomplete",
        )
    return match[1]


def digest_of(text: Secret) -> bytes:
    """Return the SHA-256 of a token's text: 32 bytes, under which the quorum stores it."""
    return hashlib.sha256(text.reveal().encode("utf-8", "surrogatepass")).digest()


def is_that_of(digest: bytes, stored: bytes) -> bool:
    """Return whether two digests are equal, in constant time."""
    return hmac.compare_digest(digest, stored)
