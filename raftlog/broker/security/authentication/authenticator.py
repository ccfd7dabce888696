"""The authentication of requests (S12): credentials in, a caller or one error out.

A request may carry a client certificate that names a user, and an `authorization` header with a token, an access token
of an identity provider (RFC 6750), or a name and password (RFC 7617). Several must agree on the user. A credential that
is not valid is refused even where none is required: a client that shows one means to be somebody.

Certificates, tokens and names count only for users that the quorum has, so that removing a user shuts it out whatever
it holds. An access token needs no such user: the identity provider keeps its own. For the same reason the standing of a
superuser that the quorum gave to a name does not extend to access tokens, only `security.super_users` does.

Every refusal has the same text. Its cause goes to `on_refused`, without the credential.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from metadata.records.security import TokenRecord, UserRecord
from raftlog.broker.security.identity_provider.access_claims import AccessClaims
from raftlog.broker.security.passwords.checks import PasswordChecks, Stored
from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.config import KIB, SecurityConfig
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.ports import Answer
from raftlog.security.presented import Presented
from raftlog.security.principals import ANONYMOUS, Caller, Principal, check_user_name
from raftlog.security.secrets import Secret

from .authentication import NEVER, Authentication
from .tokens import digest_of, id_of, is_that_of, is_token

MAX_AUTHORIZATION = 24 * KIB
"""Most characters of an `authorization` header."""
MAX_ROUNDS = 3
"""Most checks of one password if its user changes meanwhile."""

CERTIFICATE, TOKEN, PASSWORD, ACCESS_TOKEN = "certificate", "token", "password", "access_token"

OnRefused: TypeAlias = Callable[[str, str, str, str], None]
"""Called with the host, the claimed name, the mechanism and the reason of each refusal, for the audit log."""


class Security(Protocol):
    """The part of `view.security` that is needed here."""

    def user(self, name: str) -> UserRecord | None: ...

    def token_of_digest(self, digest: bytes) -> TokenRecord | None: ...


class AccessTokenCheck(Protocol):
    """The check of an identity provider's access tokens; `AccessTokens` is one."""

    def check(self, text: Secret, answer: Answer[AccessClaims]) -> None: ...


class CertificateNames(Protocol):
    """The users of client certificates; `ClientNames` is one."""

    def user_of(self, certificate: Mapping[str, Any] | None) -> str | None: ...


class _Credential(msgspec.Struct, frozen=True):
    """One valid credential."""

    principal: Principal
    mechanism: str
    user: UserRecord | None
    """The user's record; None: an access token, which rests on none."""
    token_id: str = ""
    ends_ms: int = NEVER


class Authenticator:
    """The authentication of one node. All calls are made on the loop's thread."""

    def __init__(
        self,
        config: SecurityConfig,
        security: Security,
        now_ms: Callable[[], int],
        certificates: CertificateNames,
        passwords: PasswordChecks,
        access_tokens: AccessTokenCheck | None,
        on_refused: OnRefused,
    ) -> None:
        """`security` is the view of users and tokens. `now_ms` returns the cluster's time in milliseconds since 1970,
        by which tokens expire. `access_tokens` is None without an identity provider."""
        self._config = config
        self._super_users = frozenset(config.super_users)
        self._security = security
        self._now_ms = now_ms
        self._certificates = certificates
        self._passwords = passwords
        self._access_tokens = access_tokens
        self._on_refused = on_refused

    def authenticate(self, presented: Presented, answer: Answer[Authentication]) -> None:
        """Answer with the caller, at once unless a password or an unknown signing key takes time.

        The error is `Unauthenticated`, or a `RetriableError` if the credential cannot be checked at present.
        """
        if not self._config.is_on:
            answer(Authentication(Caller(ANONYMOUS, presented.host)))
            return
        attempt = _Attempt(presented.host, answer, self._on_refused)
        try:
            certificate = self._by_certificate(presented)
            attempt.mechanism, text = _scheme_of(presented.authorization)
            header = self._by_token(text) if attempt.mechanism == TOKEN else None
            name, password = _name_and_password(text) if attempt.mechanism == PASSWORD else ("", text)
            if attempt.mechanism == ACCESS_TOKEN and self._access_tokens is None:
                raise Unauthenticated(Cause.MALFORMED, "the text is no token, and no identity provider is configured")
        except Unauthenticated as error:
            attempt.refuse(error)
            return
        if attempt.mechanism == PASSWORD:
            attempt.claimed = name
            self._by_password(attempt, name, password, certificate)
        elif attempt.mechanism == ACCESS_TOKEN and self._access_tokens is not None:
            self._access_tokens.check(text, lambda claims: self._by_access_token(attempt, certificate, claims))
        else:
            self._finish(attempt, certificate, header)

    # --- Each credential ---

    def _by_certificate(self, presented: Presented) -> _Credential | None:
        name = self._certificates.user_of(presented.certificate)
        if name is None:
            return None
        return _Credential(Principal(name), CERTIFICATE, self._user(name))

    def _by_token(self, text: Secret) -> _Credential:
        try:
            token_id = id_of(text)
        except InvalidRequest:
            raise Unauthenticated(Cause.MALFORMED, "the text is not a whole token") from None
        digest = digest_of(text)
        token = self._security.token_of_digest(digest)
        if token is None or not is_that_of(digest, token.digest):
            raise Unauthenticated(Cause.UNKNOWN_TOKEN, f"token {token_id}")
        name = token.principal_name
        if token.is_expired(self._now_ms()):
            raise Unauthenticated(Cause.EXPIRED, f"token {token.token_id} has expired", name)
        return _Credential(Principal(name), TOKEN, self._user(name), token.token_id, token.expires_ms)

    def _by_password(
        self,
        attempt: _Attempt,
        name: str,
        password: Secret,
        certificate: _Credential | None,
        rounds: int = MAX_ROUNDS,
    ) -> None:
        user = self._security.user(name)
        stored = None if user is None else Stored(user.argon2, user.version)

        def checked(matched: bool | RaftlogError) -> None:
            now = self._security.user(name)
            if isinstance(matched, RaftlogError):
                attempt.fail(matched)
            elif _version(now) != _version(user) and rounds > 1:
                self._by_password(attempt, name, password, certificate, rounds - 1)
            elif user is None or now is None:
                attempt.refuse(Unauthenticated(Cause.UNKNOWN_USER))
            elif not user.argon2:
                attempt.refuse(Unauthenticated(Cause.NO_PASSWORD))
            elif not matched or now.version != user.version:
                attempt.refuse(Unauthenticated(Cause.WRONG_PASSWORD))
            else:
                self._finish(attempt, certificate, _Credential(Principal(name), PASSWORD, user))

        self._passwords.check(name, password, stored, attempt.host, checked)

    def _by_access_token(
        self, attempt: _Attempt, certificate: _Credential | None, claims: AccessClaims | RaftlogError
    ) -> None:
        if isinstance(claims, Unauthenticated):
            attempt.refuse(claims)
        elif isinstance(claims, RaftlogError):
            attempt.fail(claims)
        else:
            self._finish(
                attempt, certificate, _Credential(claims.principal, ACCESS_TOKEN, None, ends_ms=claims.ends_ms)
            )

    def _user(self, name: str) -> UserRecord:
        user = self._security.user(name)
        if user is None:
            raise Unauthenticated(Cause.UNKNOWN_USER, claimed=name)
        return user

    # --- Their agreement ---

    def _finish(self, attempt: _Attempt, certificate: _Credential | None, header: _Credential | None) -> None:
        """Answer with the caller of the valid credentials, or refuse them if there are none or they disagree."""
        strongest = header or certificate
        if strongest is None:
            if self._config.mode == "optional":
                attempt.accept(Authentication(Caller(ANONYMOUS, attempt.host)))
            else:
                attempt.refuse(Unauthenticated(Cause.NO_CREDENTIAL))
            return
        if certificate is not None and certificate.principal.name != strongest.principal.name:
            names = f"the certificate is of {certificate.principal}, the header of {strongest.principal}"
            attempt.refuse(Unauthenticated(Cause.DISAGREEMENT, names, strongest.principal.name))
            return
        user = strongest.user or (None if certificate is None else certificate.user)
        if user is not None and _version(self._security.user(user.name)) != user.version:
            # The certificate's user changed while the header was checked.
            attempt.refuse(Unauthenticated(Cause.CHANGED, claimed=user.name))
            return
        superuser = str(strongest.principal) in self._super_users or (user is not None and user.superuser)
        caller = Caller(strongest.principal, attempt.host, superuser=superuser, mechanism=strongest.mechanism)
        attempt.accept(
            Authentication(
                caller,
                user="" if user is None else user.name,
                user_version=0 if user is None else user.version,
                token_id=strongest.token_id,
                ends_ms=strongest.ends_ms,
            )
        )


class _Attempt:
    """One request's authentication on its way to one answer."""

    def __init__(self, host: str, answer: Answer[Authentication], on_refused: OnRefused) -> None:
        self.host = host
        self.mechanism = CERTIFICATE
        """The credential that is being checked; empty: there is none."""
        self.claimed = ""
        self._answer = answer
        self._on_refused = on_refused

    def accept(self, authentication: Authentication) -> None:
        self._answer(authentication)

    def refuse(self, error: Unauthenticated) -> None:
        """Report the cause, and answer with the text that is the same for all causes."""
        self._on_refused(self.host, error.claimed or self.claimed, self.mechanism, error.reason)
        self._answer(error)

    def fail(self, error: RaftlogError) -> None:
        """Answer that the credential cannot be checked."""
        self._answer(error)


def _version(user: UserRecord | None) -> int:
    """Return the version of a user's record; 0 if there is none."""
    return 0 if user is None else user.version


def _scheme_of(authorization: Secret | None) -> tuple[str, Secret]:
    """Return the mechanism of a header and its credentials; an empty mechanism if there is no header.

    Raises `Unauthenticated`.
    """
    if authorization is None:
        return "", Secret("")
    text = authorization.reveal()
    if len(text) > MAX_AUTHORIZATION:
        raise Unauthenticated(Cause.MALFORMED, f"an authorization header of {len(text)} characters")
    scheme, _, rest = text.strip(" \t").partition(" ")
    credentials = Secret(rest.lstrip(" "))
    match scheme.lower():
        case "basic":
            return PASSWORD, credentials
        case "bearer":
            return (TOKEN if is_token(credentials) else ACCESS_TOKEN), credentials
        case _:
            raise Unauthenticated(Cause.MALFORMED, "the scheme of the authorization header is not accepted")


def _name_and_password(credentials: Secret) -> tuple[str, Secret]:
    """Return the parts of a Basic credential (RFC 7617 section 2, UTF-8). Raises `Unauthenticated`."""
    try:
        text = base64.b64decode(credentials.reveal().encode("ascii"), validate=True).decode()
    except (binascii.Error, ValueError):
        raise Unauthenticated(Cause.MALFORMED, "a Basic credential is base64 of UTF-8 text") from None
    name, colon, password = text.partition(":")
    if not colon:
        raise Unauthenticated(Cause.MALFORMED, "a Basic credential has a name, a colon and a password")
    try:
        return check_user_name(name), Secret(password)
    except InvalidRequest as error:
        raise Unauthenticated(Cause.MALFORMED, error.detail) from None
