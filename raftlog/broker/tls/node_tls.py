"""TLS of one node while it runs: who may open which stream, and files that are read again when they change.

The data listener shows this node's certificate to everybody and asks for one, without insisting: native clients have
none yet. The brokers' own paths insist: their streams are opened for a peer whose certificate names a node of this
cluster, and `stream.peer_node` tells the links whose frames to take (each hello's node id is held against it, S12).
The other way round a dialer speaks only to exactly the node that it meant to reach.

Files are looked at every `WATCH_SECONDS`. A new set serves the next connections once it has stood its test; a bad one
is told of, and the old one goes on. Connections that are there stay.

Contexts are asked for by the broker's thread and the quorum's: `_files` is replaced as a whole and never changed.
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
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId
from raftlog.ports import Clock
from raftlog.wire import FETCH_PATH, PRODUCE_PATH

from .expiry import ExpiryLog
from .files import TlsFiles, load_tls_files, stamps_of
from .names import NodeNames

QUORUM_NAME = "quorum.raftlog"
"""Server name that the quorum's dialers send, so that a listener serves them on its quorum's own loop."""

WATCH_SECONDS = 2.0
REFUSALS_PER_SECOND = 1.0
REFUSALS_BURST = 100
"""Lines of log that strangers can cause."""

CLIENT_PATHS = frozenset({PRODUCE_PATH, FETCH_PATH})


class RefusalLog:
    """Somebody was turned away: one line in the log, if there is room for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = RateLimit(REFUSALS_PER_SECOND, REFUSALS_BURST, clock.monotonic())

    def __call__(self, address: str, reason: str) -> None:
        if self._rate.allow(self._clock.monotonic()):
            structlog.get_logger().warning("connection_refused", address=address, reason=reason)


class NodeTls:
    """Made before the node's loop has anything to do: it reads files."""

    def __init__(self, config: TlsConfig, cluster_id: str, node: BrokerId, clock: Clock) -> None:
        """Raises `InvalidRequest` for files that cannot be used."""
        self._config = config
        self._node = node
        self._clock = clock
        self._log = structlog.get_logger()
        self.names = NodeNames(config.node_name, cluster_id)
        self._files: TlsFiles = load_tls_files(config, self.names, self._node)
        self._expiry = ExpiryLog()
        self._complaint = ""
        """What is wrong with the files that lie there now, and was told."""
        self._last_failure = ""
        """Why the last look came to nothing; empty where it did not."""
        self.on_refused = RefusalLog(clock)
        self._task: asyncio.Task[None] | None = None

    # --- Connections ---

    def server_context(self) -> ssl.SSLContext:
        """For a connection that is accepted now."""
        return self._files.server

    def dial(self, peer: BrokerId) -> DialTls:
        """For connections to that node."""
        return DialTls(self._client_context, check=lambda certificate: self.names.expect(certificate, peer))

    def dial_quorum(self, peer: BrokerId) -> DialTls:
        """The same, to be served on the quorum's loop over there."""
        return DialTls(self._client_context, QUORUM_NAME, lambda certificate: self.names.expect(certificate, peer))

    def _client_context(self) -> ssl.SSLContext:
        return self._files.client

    def guarded(self, acceptors: Mapping[str, StreamAcceptor]) -> dict[str, StreamAcceptor]:
        """The same, but all that is not a native client's is for nodes only: what is added later, too."""
        return {
            path: acceptor if path in CLIENT_PATHS else self.for_nodes(acceptor) for path, acceptor in acceptors.items()
        }

    def for_nodes(self, acceptor: StreamAcceptor) -> StreamAcceptor:
        """The acceptor, for streams of this cluster's nodes only; others are refused and told of."""

        def accept(stream: Http2Stream) -> StreamHandler:
            try:
                stream.peer_node = self.names.node_of(stream.connection.get_extra_info("peercert"))
            except InvalidRequest as error:
                self.on_refused(stream.connection.peer_address, f"{stream.path[:100]}: {error.detail}")
                raise
            return acceptor(stream)

        return accept

    # --- Time ---

    def problems(self) -> list[str]:
        """For the node's health."""
        now = self._clock.wall_ms() / 1000
        lines = [line for lifetime in self._files.lifetimes if (line := lifetime.line(now)) is not None]
        return [*lines, self._complaint] if self._complaint else lines

    def watch(self) -> None:
        """Look at files and dates from now on, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._watch())
        self._task.add_done_callback(_report)

    async def close(self) -> None:
        """Look no more."""
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
            except Exception as error:  # noqa: BLE001  want of a thread or of memory, or a bug: told, and tried again
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if repr(error) != self._last_failure:
            self._last_failure = repr(error)
            message = "the TLS files were not looked at: tried again"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def look(self) -> None:
        """Read the files again if they have changed. Blocks; one thread at a time."""
        try:
            if stamps_of(self._config) == self._files.stamps and not self._complaint:
                return
            self._files = load_tls_files(self._config, self.names, self._node)
        except InvalidRequest as error:
            complaint = f"{error.detail}; the files read before are still in use"
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
    """A bug in the watching must not die unseen with its task: new certificates would never be read."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        message = "the TLS files are watched no more"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
