"""The cluster that a command talks to: its addresses, TLS and the credential.

They come from the options before the command, from a named profile, from the environment, or from the current profile,
in this order. Addresses, TLS files and the credential are three parts: each is taken whole from the first source that
has it, so that no credential is combined with half of another. The current profile counts only if its address does: a
credential that is meant for one cluster never goes to another.

A token or a password is never an argument, since every user of a machine can see the arguments of its processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import msgspec
import rich_click as click

from .command import option

if TYPE_CHECKING:
    from raftlog.client.cluster.api import HttpApi
    from raftlog.client.keywords import AdminKeywords

DEFAULT_BOOTSTRAP = "127.0.0.1:9640"
TOKEN_VARIABLE = "RAFTLOG_TOKEN"
FILE = click.Path(dir_okay=False)
FILE_OR_STDIN = click.Path(dir_okay=False, allow_dash=True)

TLS_FIELDS = ("tls_authority", "tls_certificate", "tls_key")
CREDENTIAL_FIELDS = ("token", "token_file", "user", "password")


class Access(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """TLS files and the credential. It may be sent to a child process through a pipe."""

    tls_authority: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    token: str | None = None
    token_file: str | None = None
    user: str | None = None
    password: str | None = None
    insecure_credentials: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.credential_kind})"

    @property
    def credential_kind(self) -> str:
        """The kind of credential, for people."""
        if self.token_file is not None:
            return f"token of {self.token_file}"
        if self.token is not None:
            return "token"
        if self.user is not None:
            return f"password of {self.user}"
        return "certificate" if self.tls_certificate is not None else "none"

    @property
    def keywords(self) -> AdminKeywords:
        """The keywords of the client's objects. Raises `InvalidRequest` for text that cannot be a credential."""
        from raftlog.client import Credentials
        from raftlog.client.keywords import AdminKeywords

        return AdminKeywords(
            tls_authority=self.tls_authority,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            insecure_credentials=self.insecure_credentials,
            # Without a credential here there is none: the environment was one of the sources.
            credentials=Credentials(
                token=self.token, token_file=self.token_file, user=self.user or "", password=self.password
            ),
        )


class Connection(Access, frozen=True, kw_only=True, omit_defaults=True):
    """A cluster and the access to it: also the content of a profile."""

    bootstrap: str = ""
    """API addresses, separated by commas; empty: not known."""

    def __repr__(self) -> str:
        return f"Connection({self.bootstrap!r}, {self.credential_kind})"

    @property
    def access(self) -> Access:
        """The access alone."""
        return Access(**{name: getattr(self, name) for name in Access.__struct_fields__})

    def api(self) -> HttpApi:
        """Return connections to the cluster's API; close them. Raises `InvalidRequest`."""
        from raftlog.client.cluster.api import HttpApi
        from raftlog.client.cluster.connection_security import ConnectionSecurity
        from raftlog.client.settings import AdminSettings

        return HttpApi(self.bootstrap, ConnectionSecurity(AdminSettings(**self.keywords)))

    async def reach(self, *, data: bool = False) -> None:
        """Return once a node has answered; with `data`, also at a data listener.

        Raises `RetriableError` at once if none can be reached, `InvalidRequest`. The client would retry for its whole
        timeout, which serves programs and not people.
        """
        from raftlog.client.cluster.probe import reach_data
        from raftlog.errors import RetriableError

        async with self.api() as api:
            try:
                await api.reach()
                if data:
                    await reach_data(api)
            except RetriableError as error:
                if error.code != "connection_lost":
                    raise
                told = f"{error.detail}. Is the cluster running, and is this its address (--bootstrap)?"
                here = " `raftlog dev` runs one on this machine." if self.bootstrap == DEFAULT_BOOTSTRAP else ""
                raise RetriableError(error.code, f"{told}{here}") from None

    def check(self) -> None:
        """Raise `InvalidRequest` if these settings contradict each other, or if the credential must not be sent."""
        self.api()

    def over(self, other: Connection) -> Connection:
        """Return these parts, and those of another connection where this one has none."""
        taken = {"bootstrap": self.bootstrap or other.bootstrap}
        for part in (TLS_FIELDS, CREDENTIAL_FIELDS):
            source = self if any(getattr(self, name) is not None for name in part) else other
            taken |= {name: getattr(source, name) for name in part}
        insecure = self.insecure_credentials or other.insecure_credentials
        return Connection(**taken, insecure_credentials=insecure)


def choose(sources: Iterable[Connection], current: Connection | None) -> Connection:
    """Return the connection from sources in their order, then from the current profile, then the default."""
    found = Connection()
    for source in sources:
        found = found.over(source)
    if not found.bootstrap and current is not None:
        found = found.over(current)
    return found.over(Connection(bootstrap=DEFAULT_BOOTSTRAP))


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options before the command. `OF_CONNECTION` are fields of a `Connection`, too."""

    bootstrap: Annotated[
        str | None,
        option(
            "API addresses of some nodes; the others are found through them. https://HOST:PORT if they use TLS. "
            f"[default: {DEFAULT_BOOTSTRAP}]",
            envvar="RAFTLOG_BOOTSTRAP",
            metavar="HOST:PORT,...",
        ),
    ] = None
    profile: Annotated[
        str | None,
        option(
            "Profile with addresses, TLS files and a credential; see `raftlog profile`.",
            envvar="RAFTLOG_PROFILE",
            metavar="NAME",
        ),
    ] = None
    token_file: Annotated[
        str | None,
        option(
            f"File with a token; - reads it from standard input. The variable {TOKEN_VARIABLE} holds a token itself.",
            envvar="RAFTLOG_TOKEN_FILE",
            metavar="FILE|-",
            type=FILE_OR_STDIN,
        ),
    ] = None
    user: Annotated[
        str | None, option("Authenticate as this user, by a password.", envvar="RAFTLOG_USER", metavar="NAME")
    ] = None
    password_file: Annotated[
        str | None,
        option(
            "File with the password of --user; - reads it from standard input (default: ask for it).",
            envvar="RAFTLOG_PASSWORD_FILE",
            metavar="FILE|-",
            type=FILE_OR_STDIN,
        ),
    ] = None
    tls_authority: Annotated[
        str | None,
        option(
            "Trust nodes with certificates of this authority (PEM file).", envvar="RAFTLOG_TLS_AUTHORITY", type=FILE
        ),
    ] = None
    tls_certificate: Annotated[
        str | None, option("Certificate of the user (PEM file).", envvar="RAFTLOG_TLS_CERTIFICATE", type=FILE)
    ] = None
    tls_key: Annotated[
        str | None, option("Key of that certificate (PEM file).", envvar="RAFTLOG_TLS_KEY", type=FILE)
    ] = None
    insecure_credentials: Annotated[
        bool, "Send the credential without TLS, even to other machines, where others may read it."
    ] = False


OF_CONNECTION = ("bootstrap", "token_file", "user", *TLS_FIELDS)
