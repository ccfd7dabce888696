"""The security of one user's connections: TLS contexts, the credential, and the places to which it may be sent.

The addresses of nodes come from the cluster's metadata, so a credential is sent only to a node that TLS has verified,
or to this machine. A token file is read again when a node no longer accepts its token: once for each token that was in
use, so that a rotation needs no restart, and a wrong token fails at once. The files of TLS are read again as
`tls_context.py` says.
"""

from __future__ import annotations

import ssl
from ipaddress import ip_address

from raftlog.client.credentials import Credentials
from raftlog.client.settings import Settings
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2.tls import DialTls, prepare
from raftlog.model import Endpoint
from raftlog.security.secrets import Secret

from .tls_context import TlsContext

AUTHORIZATION = "authorization"
HTTP1_ALPN = "http/1.1"
UNAUTHENTICATED, UNAUTHORIZED, INSECURE = "unauthenticated", "authorization_failed", "invalid_config"


def blames_credential(error: RaftlogError) -> bool:
    """Return whether a retry needs another credential or another access rule, so that waiting does not help."""
    return error.code in (UNAUTHENTICATED, UNAUTHORIZED, INSECURE)


class ConnectionSecurity:
    """The security of one user's connections. `https` of the API is decided by the bootstrap addresses."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Read the files of TLS, but not yet a token file.

        Raises `InvalidRequest` (`invalid_config`) if they cannot be used.
        """
        self._settings = settings or Settings()
        given = self._settings.credentials
        self._credentials = Credentials.of_environment() if given is None else given
        self._header: Secret | None = None
        """The header in use, once it is known."""
        own = self._settings
        self._uses_files = own.tls_authority is not None or own.tls_certificate is not None
        self._api_files: TlsContext | None = None
        self._data_tls: DialTls | None = None
        if own.ssl is not None:
            self._data_tls = DialTls.of(own.ssl)
        elif self._uses_files:
            self._data_tls = DialTls(TlsContext(own, prepare))

    def api_context(self) -> ssl.SSLContext:
        """Return the context for a new connection to an API that speaks TLS.

        Raises `InvalidRequest` (`invalid_config`) if it is made of files that cannot be used, and was not before.
        """
        if self._settings.ssl is not None:
            return self._settings.ssl
        if self._api_files is None:
            self._api_files = TlsContext(self._settings, _speaking_http1)
        return self._api_files()

    @property
    def prefers_https(self) -> bool:
        """Whether addresses without a scheme mean `https`: there are TLS settings, and a credential to protect."""
        with_tls = self._uses_files or self._settings.ssl is not None
        return with_tls and not (self._credentials.is_anonymous and self._settings.tls_certificate is None)

    def data_tls(self, https: bool) -> DialTls | None:
        """Return the TLS of data connections, or None if they are plain. An API with TLS implies it."""
        if self._data_tls is None and https:
            self._data_tls = DialTls(TlsContext(self._settings, prepare))
        return self._data_tls

    def credential(self, endpoint: Endpoint, *, tls: bool) -> Secret | None:
        """Return the value of the `authorization` header for a request to this address; None: there is no credential.

        Raises `InvalidRequest` (`invalid_config`): it could be read on the way, or the token file has no token.
        """
        if self._credentials.is_anonymous:
            return None
        self.check(endpoint, tls=tls)
        if self._header is None:
            self._header = self._credentials.header()
        return self._header

    def check(self, endpoint: Endpoint, *, tls: bool) -> None:
        """Raise `InvalidRequest` (`invalid_config`) if there is a credential and it must not be sent there."""
        if self._credentials.is_anonymous or self._settings.insecure_credentials or _is_loopback(endpoint.host):
            return
        what = f"{self._credentials.shown} was not sent to {endpoint}"
        if not tls:
            raise InvalidRequest(
                INSECURE,
                f"{what}: without TLS it could be read on the way. Give https:// addresses (and tls_authority), or set "
                "insecure_credentials",
            )
        if not self._verifies:
            raise InvalidRequest(
                INSECURE,
                f"{what}: the TLS context verifies neither the node's certificate nor its host name. Use "
                "ssl.create_default_context or tls_authority, or set insecure_credentials",
            )

    @property
    def _verifies(self) -> bool:
        context = self._settings.ssl
        return context is None or (context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname)

    def renewed(self, used: Secret | None) -> bool:
        """Return whether there is another credential than `used`, which a node has refused: repeat the request.

        Reads a token file again. Raises `InvalidRequest` (`invalid_config`) if it cannot be read.
        """
        if self._credentials.token_file is None or used is None:
            return False
        if self._header == used:
            self._header = self._credentials.header()
        return self._header != used

    def explained(self, error: RaftlogError) -> RaftlogError:
        """Return the error of a node, with what this client sent if the node does not accept it."""
        if error.code != UNAUTHENTICATED:
            return error
        sent = "this client sent no credential"
        if not self._credentials.is_anonymous:
            sent = f"this client sent {self._credentials.shown}"
        elif self._settings.tls_certificate is not None:
            sent = f"this client has the certificate {self._settings.tls_certificate}"
        return InvalidRequest(UNAUTHENTICATED, f"{error.detail}; {sent}")


def _speaking_http1(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_alpn_protocols([HTTP1_ALPN])
    return context


def _is_loopback(host: str) -> bool:
    """Return whether a host can only be this machine (RFC 6761 section 6.3)."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
