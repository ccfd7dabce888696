"""The error of a request whose credential is missing or not valid.

Its text is the same for every cause: a caller must not learn whether a name exists, a token has expired or a password
is wrong (RFC 9110 section 15.5.2, OWASP ASVS 2.2). The true cause is for the audit log, and contains no secret.
"""

from __future__ import annotations

import enum

from raftlog.errors import InvalidRequest

TEXT = (
    "the request carries no valid credential: give a token (RAFTLOG_TOKEN or --token-file), a name and password, or a "
    "client certificate of this cluster; the node's audit log has the reason"
)


class Cause(enum.StrEnum):
    """Why a request was not authenticated."""

    NO_CREDENTIAL = "no_credential"
    MALFORMED = "malformed_credential"
    UNKNOWN_USER = "unknown_user"
    WRONG_PASSWORD = "wrong_password"
    NO_PASSWORD = "user_without_password"
    UNKNOWN_TOKEN = "unknown_token"
    EXPIRED = "expired"
    INVALID_ACCESS_TOKEN = "invalid_access_token"
    AMBIGUOUS_CERTIFICATE = "ambiguous_certificate"
    DISAGREEMENT = "credentials_disagree"
    CHANGED = "user_or_token_changed"
    """The user or the token of an open stream was changed or removed."""


class Unauthenticated(InvalidRequest):
    """A credential is missing or not valid."""

    def __init__(self, cause: Cause, why: str = "", claimed: str = "") -> None:
        super().__init__("unauthenticated", TEXT)
        self.cause = cause
        self.why = why
        """The reason for the audit log, more exact than the cause. It has no secret, and is not part of the text."""
        self.claimed = claimed
        """The name that the credential claims, as far as it is legible. Nothing proves it."""

    @property
    def reason(self) -> str:
        """The cause with its explanation, for the audit log."""
        return f"{self.cause}: {self.why}" if self.why else str(self.cause)
