"""Loading of certificate files for listener and dialers. Blocks; runs before the start and on a worker.

Loaded files are tested before use: the node performs a handshake with itself, in memory, with both of its contexts.
Whatever a peer would object to (a key that does not fit, an expired certificate, an authority that did not sign it,
another node's name, a missing purpose) is found there and reported with the file's name, while an older set still
serves.

Sessions are not resumed: a peer that reconnects shows its certificate again.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from raftlog.config import TlsConfig
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2.tls import prepare
from raftlog.model import BrokerId

from .expiry import Lifetime
from .names import NodeNames

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers for TLS 1.2 (RFC 9113 section 9.2.2 forbids most others); those of 1.3 are all good."""

HANDSHAKE_STEPS = 10
"""Maximum number of steps of a handshake, more than any takes."""

_Stamp: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The result of one reading of the files."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    lifetimes: tuple[Lifetime, ...]
    stamps: tuple[_Stamp, ...]
    """Stamps of the files before they were read."""
    key_is_open: bool
    """Whether others than its owner may read the key."""


def stamps_of(config: TlsConfig) -> tuple[_Stamp, ...]:
    """Return values that change when a file changes. Links are followed. Raises `InvalidRequest`."""
    stamps = []
    for path in (config.certificate, config.key, config.authority):
        try:
            found = os.stat(path)
        except OSError as error:
            raise _refusal(f"cannot read {path}: {error.strerror}") from None
        stamps.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode))
    return tuple(stamps)


def load_tls_files(config: TlsConfig, names: NodeNames, node: BrokerId) -> TlsFiles:
    """Read and test the files. Raises `InvalidRequest`, which names the file and its problem."""
    stamps = stamps_of(config)
    server, client = _context(config, ssl.PROTOCOL_TLS_SERVER), _context(config, ssl.PROTOCOL_TLS_CLIENT)
    try:
        own = _shake_hands_with_itself(server, client)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or str(error)
        raise _refusal(f"peers would reject {config.certificate}, checked by {config.authority}: {why}") from None
    try:
        names.expect(own, node)
    except RaftlogError as error:
        raise _refusal(f"{config.certificate} is not for this node: {error.detail}") from None
    authorities = [Lifetime.of("the TLS authority's certificate", found) for found in client.get_ca_certs()]
    # During a rotation there are several authorities, and one valid one is enough.
    last = max(authorities, key=lambda lifetime: lifetime.ends)
    lifetimes = (Lifetime.of("this node's TLS certificate", own), last)
    *_, key_mode = stamps[1]
    return TlsFiles(server, client, lifetimes, stamps, bool(key_mode & 0o077))


def _context(config: TlsConfig, protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # a node is identified by its name in the cluster, not by its host
    server = protocol is ssl.PROTOCOL_TLS_SERVER
    context.verify_mode = ssl.CERT_OPTIONAL if server else ssl.CERT_REQUIRED
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    if server:
        context.num_tickets = 0
    try:
        context.load_verify_locations(config.authority)
    except (OSError, ValueError) as error:
        raise _refusal(f"{config.authority} contains no certificate of an authority: {_text(error)}") from None
    try:
        context.load_cert_chain(config.certificate, config.key, password=_no_pass_phrase)
    except (OSError, ValueError) as error:
        raise _refusal(
            f"{config.certificate} and {config.key} are not a certificate and its key: {_text(error)}"
        ) from None
    if not context.get_ca_certs():
        raise _refusal(f"{config.authority} contains no certificate of an authority (with `CA:TRUE`)")
    return prepare(context)


def _no_pass_phrase() -> str:
    """Refuse an encrypted key. Otherwise OpenSSL asks for the pass phrase at the terminal, and waits."""
    raise ValueError("the key is encrypted: use one without a pass phrase, in a file that only raftlog can read")


def _shake_hands_with_itself(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Handshake in both roles, and return the certificate as a peer sees it. Raises `ssl.SSLError`."""
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
    seen = ends[1].getpeercert()
    if not seen or not ends[0].getpeercert():
        raise ssl.SSLError("the handshake of the node with itself does not end")
    return seen


def _text(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or getattr(error, "strerror", None) or error)


def _refusal(detail: str) -> InvalidRequest:
    return InvalidRequest("invalid_config", f"tls: {detail}")
