"""Access tokens of an identity provider: signed JWTs (RFC 7519, 7515, 9068, and the advice of RFC 8725).

A token counts if one of the provider's keys signed it with an accepted algorithm, it is from the configured issuer, for
the configured audience, and the present lies within its time. The header is untrusted: it selects a key by its id,
and everything else that it offers (keys, certificates, URLs) is ignored. Encrypted tokens are not accepted.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwa import JWSAlgModel

from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.config import KIB, OidcConfig
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.ports import Answer
from raftlog.security.principals import GROUP, MAX_GROUPS, Principal, check_principal, check_user_name
from raftlog.security.secrets import Secret

from .access_claims import AccessClaims
from .key_set import ALGORITHMS, SigningKey
from .signing_keys import not_read

SKEW_SECONDS = 60
"""Difference that is tolerated between the provider's clock and the cluster's time."""
MAX_CHARACTERS = 16 * KIB
"""Most characters of an access token; a token with 200 groups has some 8 KiB."""
MAX_HEADER_CHARACTERS = 4 * KIB
TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Accepted `typ` headers, besides none: a logout token or a proof of possession is no access token (RFC 8725 section
3.11)."""
LATEST = 2**43
"""Largest time in a claim, in seconds since 1970; later ones would overflow milliseconds in 64 bits."""


class Keys(Protocol):
    """The part of `SigningKeys` that is needed here."""

    @property
    def is_known(self) -> bool: ...

    def find(self, key_id: str | None, algorithm: str) -> SigningKey | None: ...

    def after_reading(self, then: Callable[[], None]) -> None: ...


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: Any = msgspec.UNSET
    b64: Any = msgspec.UNSET


class _Claims(msgspec.Struct):
    iss: str
    aud: str | list[str]
    exp: int | float
    nbf: int | float | None = None
    iat: int | float | None = None


class _Registry(jws.JWSRegistry):
    """joserfc's algorithms, of which only the accepted ones exist."""

    max_header_length = MAX_HEADER_CHARACTERS
    max_payload_length = MAX_CHARACTERS

    def __init__(self) -> None:
        super().__init__(algorithms=ALGORITHMS, strict_check_header=False)

    def get_alg(self, name: str) -> JWSAlgModel:
        """Return an accepted algorithm. The base warns of `EdDSA`, whose key type here is always Ed25519."""
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError("the algorithm is not accepted")
        return self.algorithms[name]


class AccessTokens:
    """The check of one provider's access tokens."""

    def __init__(self, config: OidcConfig, keys: Keys, now_ms: Callable[[], int]) -> None:
        """`now_ms` returns milliseconds since 1970."""
        self._config = config
        self._keys = keys
        self._now_ms = now_ms
        self._registry = _Registry()

    def check(self, text: Secret, answer: Answer[AccessClaims]) -> None:
        """Answer with the claims of a valid token, at once or after the keys were read.

        The error is `Unauthenticated`, or a `RetriableError` if the provider's keys were never read.
        """
        try:
            header = _header_of(text.reveal())
        except Unauthenticated as error:
            answer(error)
            return
        if self._keys.find(header.kid, header.alg) is not None:
            answer(self._outcome(text, header))
        else:
            self._keys.after_reading(lambda: answer(self._outcome(text, header)))

    def _outcome(self, text: Secret, header: _Header) -> AccessClaims | RaftlogError:
        try:
            return self._claims(text.reveal(), header)
        except RaftlogError as error:
            return error

    def _claims(self, text: str, header: _Header) -> AccessClaims:
        key = self._keys.find(header.kid, header.alg)
        if key is None:
            if not self._keys.is_known:
                raise not_read()
            named = "without a key id" if header.kid is None else f"of key {header.kid[:64]!r}"
            raise _invalid(f"no key of the provider fits a token {named} and {header.alg}")
        try:
            payload = jws.deserialize_compact(text, key.key, registry=self._registry).payload
            found = msgspec.json.decode(payload, type=dict[str, Any])
            claims = msgspec.convert(found, _Claims)
        except JoseError as error:
            raise _invalid(f"the signature is not valid: {error.error}") from None
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise _invalid(f"the claims are malformed: {error}") from None
        ends = self._checked_times(claims)
        if claims.iss != self._config.issuer:
            raise _invalid(f"the issuer is {claims.iss[:100]!r}")
        if self._config.audience not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud):
            raise _invalid("it is for another audience")
        return AccessClaims(self._principal(found), ends)

    def _checked_times(self, claims: _Claims) -> int:
        """Check the times; return the end in milliseconds."""
        now = self._now_ms() / 1000
        if not all(0 <= time <= LATEST for time in (claims.exp, claims.nbf or 0, claims.iat or 0)):
            raise _invalid("a time is out of range")
        if now >= claims.exp + SKEW_SECONDS:
            raise Unauthenticated(Cause.EXPIRED, f"the access token ended at {claims.exp:.0f}")
        for name, time in (("nbf", claims.nbf), ("iat", claims.iat)):
            if time is not None and time > now + SKEW_SECONDS:
                raise _invalid(f"{name} {time:.0f} is ahead of the cluster's time")
        return int((claims.exp + SKEW_SECONDS) * 1000)

    def _principal(self, claims: dict[str, Any]) -> Principal:
        name, groups = claims.get(self._config.principal_claim), claims.get(self._config.groups_claim, [])
        if not isinstance(name, str):
            raise _invalid(f"the claim {self._config.principal_claim!r} is not a text")
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise _invalid(f"the claim {self._config.groups_claim!r} is not a list of texts")
        if len(groups) > MAX_GROUPS:
            raise _invalid(f"it names {len(groups)} groups, more than {MAX_GROUPS}")
        try:
            check_user_name(name)
            for group in groups:
                check_principal(f"{GROUP}:{group}")
        except InvalidRequest as error:
            raise _invalid(error.detail) from None
        return Principal(name, tuple(dict.fromkeys(groups)))


def _header_of(text: str) -> _Header:
    """Return the header of a token whose form is right. Raises `Unauthenticated`."""
    if len(text) > MAX_CHARACTERS:
        raise _malformed(f"an access token of {len(text)} characters; {MAX_CHARACTERS} are accepted")
    if not text.isascii() or text.count(".") != 2:
        raise _malformed("the text is neither a token nor a signed JWT")
    segment = text.partition(".")[0]
    if len(segment) > MAX_HEADER_CHARACTERS:
        raise _malformed("the header of the JWT is too long")
    try:
        padded = segment + "=" * (-len(segment) % 4)
        header = msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=_Header)
    except (binascii.Error, msgspec.MsgspecError, RecursionError, ValueError):
        raise _malformed("the header of the JWT is malformed") from None
    if header.alg not in ALGORITHMS:
        raise _invalid(f"the algorithm {header.alg[:20]!r} is not accepted")
    if header.crit is not msgspec.UNSET or header.b64 is not msgspec.UNSET:
        raise _invalid("the header requires an extension")
    if header.typ is not None and header.typ.lower() not in TYPES:
        raise _invalid(f"a JWT of type {header.typ[:40]!r} is no access token")
    return header


def _malformed(why: str) -> Unauthenticated:
    return Unauthenticated(Cause.MALFORMED, why)


def _invalid(why: str) -> Unauthenticated:
    return Unauthenticated(Cause.INVALID_ACCESS_TOKEN, why)
