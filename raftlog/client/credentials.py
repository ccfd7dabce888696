"""Credentials of a client: a token, or a user's name and password, and the header in which they travel.

The header is HTTP's `authorization` (RFC 9110 section 11.6.2), with a token by `Bearer` (RFC 6750) and a password by
`Basic` (RFC 7617). No text of a credential appears in a `repr`, a log or an error.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from raftlog.errors import InvalidRequest
from raftlog.security.principals import MAX_NAME
from raftlog.security.secrets import Secret

TOKEN_VARIABLE = "RAFTLOG_TOKEN"
TOKEN_FILE_VARIABLE = "RAFTLOG_TOKEN_FILE"
MAX_TOKEN = 16_384
"""Characters; access tokens of identity providers have a few thousand."""
MAX_PASSWORD = 1_024

_TOKEN = re.compile(f"[A-Za-z0-9._~+/-]{{1,{MAX_TOKEN}}}=*", re.ASCII)


def _wrong(detail: str) -> InvalidRequest:
    return InvalidRequest("invalid_config", detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credential of a client: `token`, `token_file`, or `user` with `password`; without any, it is anonymous.

    Raises `InvalidRequest` (`invalid_config`) for several of them, or for text that cannot be a credential.
    """

    token: str | Secret | None = field(default=None, repr=False)
    """A token, or an access token of the cluster's identity provider. It is kept as a `Secret`."""
    token_file: str | None = None
    """A file that contains a token alone. It is read again if the cluster no longer accepts the token."""
    user: str = ""
    password: str | Secret | None = field(default=None, repr=False)
    """The password of `user`. It is kept as a `Secret`."""
    source: str = field(default="", compare=False)
    """The origin, for error texts, such as the name of a variable."""

    def __post_init__(self) -> None:
        for name in ("token", "password"):
            text = getattr(self, name)
            if isinstance(text, str):
                object.__setattr__(self, name, Secret(text))
        if self.token_file is not None:
            object.__setattr__(self, "token_file", os.fspath(self.token_file))
        kinds = (self.token is not None, self.token_file is not None, bool(self.user) or self.password is not None)
        if sum(kinds) > 1:
            raise _wrong("give one credential: a token, a token file, or a user's name and password")
        if isinstance(self.token, Secret):
            _check_token(self.token, self.shown)
        if bool(self.user) != (self.password is not None):
            raise _wrong("a user's name and password belong together: give both, or a token")
        if isinstance(self.password, Secret):
            self._check_password(self.password)

    def _check_password(self, password: Secret) -> None:
        name = self.user
        if len(name) > MAX_NAME or ":" in name or not name.isprintable():
            told = f"up to {MAX_NAME} printable characters without a colon"
            raise _wrong(f"the name of a user with a password has {told}, not {name[:MAX_NAME]!r}")
        text = password.reveal()
        if not 0 < len(text) <= MAX_PASSWORD or any(character < " " or character == "\x7f" for character in text):
            raise _wrong(f"the password of {name!r} must have 1 to {MAX_PASSWORD} characters, no control characters")

    @staticmethod
    def of_environment(environment: Mapping[str, str] | None = None) -> Credentials:
        """Return the token of the variable `RAFTLOG_TOKEN`, or of the file that `RAFTLOG_TOKEN_FILE` names.

        Without either, the result is anonymous. `environment` None: that of this process. Raises `InvalidRequest`.
        """
        variables = os.environ if environment is None else environment
        token, file = variables.get(TOKEN_VARIABLE, "").strip(), variables.get(TOKEN_FILE_VARIABLE, "")
        if token and file:
            raise _wrong(f"both {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are set: unset one of them")
        if file:
            return Credentials(token_file=file, source=f"the file {file} of {TOKEN_FILE_VARIABLE}")
        return Credentials(token=token, source=f"the token of {TOKEN_VARIABLE}") if token else Credentials()

    @property
    def is_anonymous(self) -> bool:
        """Whether there is no credential."""
        return self.token is None and self.token_file is None and not self.user

    @property
    def shown(self) -> str:
        """The credential as error texts name it, without its text."""
        if self.source:
            return self.source
        if self.token_file is not None:
            return f"the token of the file {self.token_file}"
        return f"the password of {self.user!r}" if self.user else "the token" if self.token is not None else "none"

    def header(self) -> Secret | None:
        """Return the value of the `authorization` header; None: there is no credential.

        Reads the token file, if there is one. Raises `InvalidRequest` (`invalid_config`) if it has no token.
        """
        if self.token_file is not None:
            return _bearer(read_token(self.token_file))
        if isinstance(self.token, Secret):
            return _bearer(self.token)
        if isinstance(self.password, Secret):
            pair = f"{self.user}:{self.password.reveal()}".encode()
            return Secret(f"Basic {base64.b64encode(pair).decode()}")
        return None


def read_token(path: str) -> Secret:
    """Return the token in a file. Raises `InvalidRequest` (`invalid_config`), without the content in its text."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(MAX_TOKEN + 1_024).strip()
    except OSError as error:
        raise _wrong(f"the token file {path} cannot be read: {error.strerror or error}") from None
    token = Secret(text)
    _check_token(token, f"the content of {path}")
    return token


def _check_token(token: Secret, shown: str) -> None:
    text = token.reveal()
    if not text:
        raise _wrong(f"{shown} is empty: it must be a token, such as `raftlog token create` prints")
    if not _TOKEN.fullmatch(text):
        told = f"1 to {MAX_TOKEN} letters, digits and -._~+/ without blanks, such as `raftlog token create` prints"
        raise _wrong(f"{shown} is not a token: a token has {told}")


def _bearer(token: Secret) -> Secret:
    return Secret(f"Bearer {token.reveal()}")
