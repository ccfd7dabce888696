"""Loading of certificate files for listener and dialers. Blocks; runs before the start and on a worker.

Loaded files are tested before use: the node performs a handshake with itself, in memory, with both of its contexts.
Whatever a peer would object to (a key that does not fit, an expired certificate, an authority that did not sign it,
another node's name, a missing purpose) is found there and reported with the file's name, while an older set still
serves. The HTTP API's certificate is tested in the same way, except that any authority may have signed it if it is not
the node's own.

Sessions are not resumed: a peer that reconnects shows its certificate again.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from raftlog.config import TlsConfig
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2.tls import prepare
from raftlog.model import BrokerId

from .expiry import Lifetime
from .names import NodeNames

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers for TLS 1.2 (RFC 9113 section 9.2.2 forbids most others); those of 1.3 are all good."""

API_ALPN = ("h2", "http/1.1")
"""The protocols of the HTTP API, the preferred one first."""

HANDSHAKE_STEPS = 10
"""Maximum number of steps of a handshake, more than any takes."""

_Stamp: TypeAlias = tuple[int, int, int, int]


class TlsFiles(msgspec.Struct, frozen=True):
    """The result of one reading of the files."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    api: ssl.SSLContext
    """For the HTTP API: a client's certificate is optional, and names a user."""
    lifetimes: tuple[Lifetime, ...]
    stamps: tuple[_Stamp, ...]
    """Stamps of the files before they were read."""
    key_is_open: bool
    """Whether others than its owner may read one of the keys."""


def stamps_of(config: TlsConfig) -> tuple[_Stamp, ...]:
    """Return values that change when a file changes. Links are followed. Raises `InvalidRequest`."""
    stamps = []
    for path in config.paths.values():
        try:
            found = os.stat(path)
        except OSError as error:
            raise _refusal(f"cannot read {path}: {error.strerror}") from None
        stamps.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode))
    return tuple(stamps)


def load_tls_files(config: TlsConfig, names: NodeNames, node: BrokerId) -> TlsFiles:
    """Read and test the files. Raises `InvalidRequest`, which names the file and its problem."""
    stamps = stamps_of(config)
    own_pair = (config.certificate, config.key)
    server, client = _server(config, own_pair), _trusting(ssl.PROTOCOL_TLS_CLIENT, config.authority, own_pair)
    own = _shown_by(prepare(server), prepare(client), config.certificate, f", checked by {config.authority}")
    try:
        names.expect(own, node)
    except RaftlogError as error:
        raise _refusal(f"{config.certificate} is not for this node: {error.detail}") from None
    authorities = [Lifetime.of("the TLS authority's certificate", found) for found in client.get_ca_certs()]
    # During a rotation there are several authorities, and one valid one is enough.
    last = max(authorities, key=lambda lifetime: lifetime.ends)
    lifetimes = [Lifetime.of("this node's TLS certificate", own), last]
    api = _server(config, own_pair)
    if config.api_certificate:
        api = _server(config, (config.api_certificate, config.api_key))
        shown = _shown_by(api, _trusting_itself(config.api_certificate), config.api_certificate)
        lifetimes.append(Lifetime.of("the HTTP API's TLS certificate", shown))
    api.set_alpn_protocols(API_ALPN)
    modes = [mode for (*_, mode), name in zip(stamps, config.paths, strict=True) if name in ("key", "api_key")]
    return TlsFiles(server, client, api, tuple(lifetimes), stamps, any(mode & 0o077 for mode in modes))


def _server(config: TlsConfig, pair: tuple[str, str]) -> ssl.SSLContext:
    """Return a context of this node as a server with a certificate and its key."""
    context = _trusting(ssl.PROTOCOL_TLS_SERVER, config.authority, pair)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0
    return context


def _trusting(protocol: ssl._SSLMethod, authority: str, pair: tuple[str, str]) -> ssl.SSLContext:
    """Return a context that trusts the authority alone and shows the certificate with its key."""
    context = _context(protocol)
    try:
        context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise _refusal(f"{authority} contains no certificate of an authority: {_text(error)}") from None
    try:
        context.load_cert_chain(*pair, password=_no_pass_phrase)
    except (OSError, ValueError) as error:
        raise _refusal(f"{pair[0]} and {pair[1]} are not a certificate and its key: {_text(error)}") from None
    if not context.get_ca_certs():
        raise _refusal(f"{authority} contains no certificate of an authority (with `CA:TRUE`)")
    return context


def _trusting_itself(certificate: str) -> ssl.SSLContext:
    """Return a client's context that trusts exactly the certificates of a file, whatever authority signed them."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return context


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # a node is identified by its name in the cluster, not by its host
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    return context


def _no_pass_phrase() -> str:
    """Refuse an encrypted key. Otherwise OpenSSL asks for the pass phrase at the terminal, and waits."""
    raise ValueError("the key is encrypted: use one without a pass phrase, in a file that only raftlog can read")


def _shown_by(server: ssl.SSLContext, client: ssl.SSLContext, certificate: str, checked: str = "") -> Mapping[str, Any]:
    """Return a server's certificate as its peers see it. Raises `InvalidRequest` if they would reject it."""
    try:
        return _shake_hands(server, client)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or str(error)
        raise _refusal(f"peers would reject {certificate}{checked}: {why}") from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Handshake in both roles, and return the server's certificate. Raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(HANDSHAKE_STEPS):
        waiting = 0
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            break
    shown = ends[0].getpeercert()
    if waiting or not shown:
        raise ssl.SSLError("the handshake of the node with itself does not end")
    return shown


def _text(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or getattr(error, "strerror", None) or error)


def _refusal(detail: str) -> InvalidRequest:
    return InvalidRequest("invalid_config", f"tls: {detail}")
