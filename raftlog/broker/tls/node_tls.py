"""TLS of a running node: authorization of streams, and files that are read again when they change.

Both listeners show this node's certificate to every peer and request one without requiring it, because a user may have
a token or a password instead; a certificate that is shown must be the authority's. The brokers' own paths require one:
their streams are opened for a peer whose certificate names a node of this cluster, and `stream.peer_node` identifies
the peer to the links (each hello's node id is compared with it, S12). In the other direction a dialer talks only to the
node that it meant to reach.

The files are checked every `WATCH_SECONDS`. A new set serves later connections once it has passed its test. A bad set
is reported, and the old one stays in use. Existing connections stay.

The broker's thread and the quorum's both use contexts, so `_files` is replaced as a whole and never changed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import structlog

from raftlog.config import TlsConfig
from raftlog.errors import InvalidRequest
from raftlog.http2 import Http2Stream, StreamAcceptor
from raftlog.http2.connection import StreamHandler
from raftlog.http2.limits import RateLimit
from raftlog.http2.tls import DialTls, explain
from raftlog.model import BrokerId
from raftlog.ports import Clock
from raftlog.wire import FETCH_PATH, GROUPS_PATH, PRODUCE_PATH, TRANSACTIONS_PATH

from .expiry import ExpiryLog
from .files import TlsFiles, load_tls_files, stamps_of
from .names import NodeNames

QUORUM_NAME = "quorum.raftlog"
"""Server name that the quorum's dialers send, so that a listener serves them on its quorum's own loop."""

WATCH_SECONDS = 2.0
REFUSALS_PER_SECOND = 1.0
REFUSALS_BURST = 100
"""Maximum number of log lines that unauthenticated peers can cause at once."""

CLIENT_PATHS = frozenset({PRODUCE_PATH, FETCH_PATH, GROUPS_PATH, TRANSACTIONS_PATH})


class RefusalLog:
    """A log of refused connections, limited in rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = RateLimit(REFUSALS_PER_SECOND, REFUSALS_BURST, clock.monotonic())

    def __call__(self, address: str, reason: str) -> None:
        if self._rate.allow(self._clock.monotonic()):
            structlog.get_logger().warning("connection_refused", address=address, reason=reason)


class NodeTls:
    """The TLS state of one node. Create it before the node's loop has work, because it reads files."""

    def __init__(self, config: TlsConfig, cluster_id: str, node: BrokerId, clock: Clock) -> None:
        """Raises `InvalidRequest` for unusable files."""
        self._config = config
        self._node = node
        self._clock = clock
        self._log = structlog.get_logger()
        self.names = NodeNames(config.node_name, cluster_id)
        self._files: TlsFiles = load_tls_files(config, self.names, self._node)
        self._expiry = ExpiryLog()
        self._complaint = ""
        """The problem of the current files that was reported; empty if there is none."""
        self._last_failure = ""
        """The reason why the last check failed; empty if it succeeded."""
        self.on_refused = RefusalLog(clock)
        self._task: asyncio.Task[None] | None = None

    # --- Connections ---

    def server_context(self) -> ssl.SSLContext:
        """Return the context for a new connection to the data listener."""
        return self._files.server

    def api_context(self) -> ssl.SSLContext:
        """Return the context for a new connection to the HTTP API."""
        return self._files.api

    def on_api_refused(self, address: str, error: Exception) -> None:
        """Log a connection to the HTTP API that ended before or in its handshake."""
        self.on_refused(address, explain(error))

    def dial(self, peer: BrokerId) -> DialTls:
        """Return the TLS settings for connections to this peer."""
        return self._dial(peer, None)

    def dial_quorum(self, peer: BrokerId) -> DialTls:
        """Return the same for the peer's quorum loop."""
        return self._dial(peer, QUORUM_NAME)

    def _dial(self, peer: BrokerId, server_name: str | None) -> DialTls:
        return DialTls(
            self._client_context,
            server_name,
            lambda certificate: self.names.expect(certificate, peer),
            or_plain=self._config.migrating,
        )

    def _client_context(self) -> ssl.SSLContext:
        return self._files.client

    def guarded(self, acceptors: Mapping[str, StreamAcceptor]) -> dict[str, StreamAcceptor]:
        """Return the acceptors, with every path but those of native clients restricted to nodes."""
        return {
            path: acceptor if path in CLIENT_PATHS else self.for_nodes(acceptor) for path, acceptor in acceptors.items()
        }

    def for_nodes(self, acceptor: StreamAcceptor) -> StreamAcceptor:
        """Return the acceptor for streams of this cluster's nodes only. Others are refused and logged.

        While the cluster migrates, a plain stream may be a node's, and is accepted as that of an unknown one.
        """

        def accept(stream: Http2Stream) -> StreamHandler | None:
            if self._config.migrating and stream.connection.get_extra_info("ssl_object") is None:
                return acceptor(stream)
            try:
                stream.peer_node = self.names.node_of(stream.connection.get_extra_info("peercert"))
            except InvalidRequest as error:
                self.on_refused(stream.connection.peer_address, f"{stream.path[:100]}: {error.detail}")
                raise
            return acceptor(stream)

        return accept

    # --- Time ---

    def problems(self) -> list[str]:
        """Return the problems for the node's health."""
        now = self._clock.wall_ms() / 1000
        lines = [line for lifetime in self._files.lifetimes if (line := lifetime.line(now)) is not None]
        return [*lines, self._complaint] if self._complaint else lines

    def expired(self) -> list[str]:
        """Return a line for each certificate of this node that has expired."""
        now = self._clock.wall_ms() / 1000
        return [line for one in self._files.lifetimes if one.ends <= now and (line := one.line(now)) is not None]

    def ends(self) -> dict[str, float]:
        """Return the end of each certificate's validity, in seconds since 1970."""
        return {lifetime.what: lifetime.ends for lifetime in self._files.lifetimes}

    def watch(self) -> None:
        """Start checking files and dates, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._watch())
        self._task.add_done_callback(_report)

    async def close(self) -> None:
        """Stop checking."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self) -> None:
        self._tell_of_open_key()
        while True:
            for line in self._expiry.due(self._files.lifetimes, self._clock.wall_ms() / 1000):
                self._log.warning("tls_certificate_expires", detail=line)
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await asyncio.to_thread(self.look)
                self._last_failure = ""
            except Exception as error:  # noqa: BLE001  a lack of threads or memory, or a bug: reported and retried
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if repr(error) != self._last_failure:
            self._last_failure = repr(error)
            message = "the check of the TLS files failed and will be retried"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def look(self) -> None:
        """Read the files again if they have changed. Blocks; call it on one thread at a time."""
        try:
            if stamps_of(self._config) == self._files.stamps and not self._complaint:
                return
            self._files = load_tls_files(self._config, self.names, self._node)
        except InvalidRequest as error:
            complaint = f"{error.detail}; the previously read files are still in use"
            if complaint != self._complaint:
                self._complaint = complaint
                self._log.warning("tls_files_refused", reason=error.detail)
            return
        self._complaint = ""
        self._log.info("tls_files_read", certificate=self._config.certificate)
        self._tell_of_open_key()

    def _tell_of_open_key(self) -> None:
        if self._files.key_is_open:
            self._log.warning("tls_key_is_readable_by_others", file=self._config.key)


def _report(task: asyncio.Task[None]) -> None:
    """Report a failure of the check: if it ended unnoticed, new certificates would never be read."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        message = "the TLS files are no longer checked"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
