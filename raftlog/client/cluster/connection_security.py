"""The security of one user's connections: TLS contexts, the credential, and the places to which it may be sent.

The addresses of nodes come from the cluster's metadata, so a credential is sent only to a node that TLS has verified,
or to this machine. A token file is read again when a node no longer accepts its token: once for each token that was in
use, so that a rotation needs no restart, and a wrong token fails at once.
"""

from __future__ import annotations

import ssl
from ipaddress import ip_address

from raftlog.client.credentials import Credentials
from raftlog.client.settings import Settings
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2.tls import DialTls
from raftlog.model import Endpoint
from raftlog.security.secrets import Secret

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
        self._api_context: ssl.SSLContext | None = None
        self._data_tls = self._data_tls_of(_files_context(own) if self._uses_files else own.ssl)

    @property
    def api_context(self) -> ssl.SSLContext:
        """The context of connections to an API that speaks TLS."""
        if self._api_context is None:
            if self._settings.ssl is not None:
                self._api_context = self._settings.ssl
            else:
                self._api_context = _files_context(self._settings)
                self._api_context.set_alpn_protocols([HTTP1_ALPN])
        return self._api_context

    @property
    def prefers_https(self) -> bool:
        """Whether addresses without a scheme mean `https`: there are TLS settings, and a credential to protect."""
        with_tls = self._uses_files or self._settings.ssl is not None
        return with_tls and not (self._credentials.is_anonymous and self._settings.tls_certificate is None)

    def data_tls(self, https: bool) -> DialTls | None:
        """Return the TLS of data connections, or None if they are plain. An API with TLS implies it."""
        if self._data_tls is None and https:
            self._data_tls = self._data_tls_of(_files_context(self._settings))
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

    @staticmethod
    def _data_tls_of(context: ssl.SSLContext | None) -> DialTls | None:
        return None if context is None else DialTls.of(context)


def _files_context(settings: Settings) -> ssl.SSLContext:
    """Return a new context that verifies certificates and host names, with the client's own certificate, if any.

    Raises `InvalidRequest` (`invalid_config`).
    """
    authority, certificate = settings.tls_authority, settings.tls_certificate
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        raise _unusable(f"{authority} contains no certificate of an authority", error) from None
    if certificate is not None:
        key = settings.tls_key or certificate
        try:
            context.load_cert_chain(certificate, key, password=_no_pass_phrase)
        except (OSError, ValueError) as error:
            raise _unusable(f"{certificate} and {key} are not a certificate and its key", error) from None
    return context


def _unusable(what: str, error: Exception) -> InvalidRequest:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return InvalidRequest("invalid_config", f"{what}: {why}")


def _no_pass_phrase() -> str:
    """Refuse an encrypted key. Otherwise OpenSSL asks for the pass phrase at the terminal, and waits."""
    raise ValueError("the key is encrypted: use one without a pass phrase, in a file that only its user can read")


def _is_loopback(host: str) -> bool:
    """Return whether a host can only be this machine (RFC 6761 section 6.3)."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
