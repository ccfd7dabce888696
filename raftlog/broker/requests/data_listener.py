"""The HTTP/2 streams of native clients and forwarding brokers, by path.

`/v1/produce` and `/v1/fetch` answer only for this broker's own partitions: a native client knows the leaders, and gets
`not_leader` if it is mistaken. `/v1/groups` serves members of consumer groups, `/raftlog.transactions` transactional
producers; any broker does. `/raftlog.forward` accepts requests that other brokers forward.

With security, a stream is accepted when its credential is valid, and serves its caller only (`caller_stream.py`); a
forwarded request carries its caller (`forward_stream.py`). The streams of nodes need a node's certificate
(`raftlog/broker/tls/node_tls.py`): no other credential opens them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from metadata.view import ClusterView
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.quotas.connections import CallerConnections
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2 import Http2Stream, StreamAcceptor
from raftlog.http2.connection import StreamHandler
from raftlog.security.principals import ANONYMOUS, Caller
from raftlog.wire import (
    FETCH_PATH,
    GROUPS_PATH,
    PRODUCE_PATH,
    TRANSACTIONS_PATH,
    DeleteRecordsRequest,
    FetchRequest,
    GroupHeartbeatsRequest,
    GroupRequest,
    OffsetsRequest,
    ProduceRequest,
    Request,
    SessionFetchRequest,
    TransactionRequest,
)

from .caller_stream import CallerStream
from .forward_stream import ForwardStream, OpenForwardStream, ServedCaller
from .forwarding import FORWARD_PATH
from .guarded import GuardedRequests
from .guarded_members import GuardedMembers
from .in_flight import InFlight, Polls
from .local import LocalRequests
from .pace import Pace, PacedStream
from .request_counts import RequestCounts
from .request_stream import AskTransactionsAs, GroupRequestsAs, RequestStream
from .stream_security import StreamSecurity, presented_of

_CLIENTS: dict[str, tuple[type[Request], ...]] = {
    PRODUCE_PATH: (ProduceRequest,),
    FETCH_PATH: (FetchRequest, SessionFetchRequest, OffsetsRequest),
    GROUPS_PATH: get_args(GroupRequest),
    TRANSACTIONS_PATH: get_args(TransactionRequest),
}
"""Path → the requests that clients send there."""
_FORWARDED = (ProduceRequest, FetchRequest, OffsetsRequest, DeleteRecordsRequest, GroupHeartbeatsRequest)


def data_acceptors(
    local: LocalRequests,
    groups: GroupRequestsAs,
    ask: AskTransactionsAs,
    accepting: Callable[[], bool],
    security: StreamSecurity | None = None,
    view: ClusterView | None = None,
    *,
    takes_plain_nodes: bool = False,
    counts: RequestCounts | None = None,
) -> dict[str, StreamAcceptor]:
    """Return the acceptors by path.

    `ask` carries out requests of transactional producers. `accepting` returns whether this broker accepts requests (not
    while it stops). `security` None: everybody may do everything; otherwise `view` is the cluster's, for the names of
    topics. `takes_plain_nodes`: whether requests are also forwarded by peers that no certificate names, while a cluster
    changes to TLS. `counts` are the node's counts of requests.
    """
    if security is not None:
        assert view is not None, "rules are about the names of topics"
        return SecureAcceptors(local, groups, ask, accepting, security, view, takes_plain_nodes, counts).by_path()

    polls, counted = Polls(), counts or RequestCounts()

    def requests(stream: Http2Stream, kinds: tuple[type[Request], ...], in_flight: InFlight) -> RequestStream:
        return RequestStream(stream, local, groups, ask, kinds, accepting, in_flight, counts=counted)

    def acceptor(kinds: tuple[type[Request], ...]) -> StreamAcceptor:
        return lambda stream: requests(stream, kinds, InFlight(stream, polls, stream.peer_host))

    served = {path: acceptor(kinds) for path, kinds in _CLIENTS.items()}
    return {**served, FORWARD_PATH: lambda stream: OpenForwardStream(requests(stream, _FORWARDED, InFlight(stream)))}


class SecureAcceptors:
    """The acceptors of a node with security."""

    def __init__(
        self,
        local: LocalRequests,
        groups: GroupRequestsAs,
        ask: AskTransactionsAs,
        accepting: Callable[[], bool],
        security: StreamSecurity,
        view: ClusterView,
        takes_plain_nodes: bool,
        counts: RequestCounts | None,
    ) -> None:
        self._counts = counts or RequestCounts()
        self._local = local
        self._takes_plain_nodes = takes_plain_nodes
        self._groups = groups
        self._ask = ask
        self._accepting = accepting
        self._security = security
        self._connections = CallerConnections(security.quotas)
        self._polls = Polls()
        self._view = view

    def by_path(self) -> dict[str, StreamAcceptor]:
        return {**{path: self._client(kinds) for path, kinds in _CLIENTS.items()}, FORWARD_PATH: self._forward}

    def _client(self, kinds: tuple[type[Request], ...]) -> StreamAcceptor:
        def accept(stream: Http2Stream) -> None:
            def decided(found: Authentication | RaftlogError) -> None:
                if stream.closed:
                    return
                try:
                    if isinstance(found, RaftlogError):
                        raise found
                    stream.accept(self._of_caller(stream, found, kinds))
                except RaftlogError as error:
                    stream.refuse(error)

            self._security.ask(presented_of(stream), decided)

        return accept

    def _of_caller(
        self, stream: Http2Stream, authentication: Authentication, kinds: tuple[type[Request], ...]
    ) -> StreamHandler:
        caller, connection = authentication.caller, stream.connection

        def serve(on_revoked: Callable[[], None]) -> tuple[StreamHandler, Callable[[], Any]]:
            pace = Pace(self._security.quotas, caller, self._security.clock)
            served = self._served(stream, caller, kinds, self._in_flight(stream, caller), on_revoked, pace)

            def release() -> None:
                served.guard.close()
                self._connections.leave(connection, caller)

            return PacedStream(stream, served.requests, pace, self._security.scheduler), release

        self._connections.enter(connection, caller)
        try:
            return CallerStream(stream, authentication, self._security.sessions, serve)
        except RaftlogError:  # the authentication has ended already
            self._connections.leave(connection, caller)
            raise

    def _in_flight(self, stream: Http2Stream, caller: Caller) -> InFlight:
        return InFlight(stream, self._polls, caller.host if caller.principal == ANONYMOUS else caller.principal)

    def _forward(self, stream: Http2Stream) -> StreamHandler:
        # `NodeTls` refuses it before; the right to speak for others is checked twice.
        if stream.peer_node < 0 and not self._takes_plain_nodes:
            raise InvalidRequest("cluster_authorization_failed", "only a node of this cluster forwards requests")
        in_flight = InFlight(stream)
        kinds = (GroupHeartbeatsRequest,)
        own = RequestStream(
            stream, self._local, self._groups, self._ask, kinds, self._accepting, in_flight, counts=self._counts
        )
        return ForwardStream(
            own,
            lambda caller, on_revoked: self._served(stream, caller, _FORWARDED, in_flight, on_revoked),
            self._security.unnamed,
        )

    def _served(
        self,
        stream: Http2Stream,
        caller: Caller,
        kinds: tuple[type[Request], ...],
        in_flight: InFlight,
        on_revoked: Callable[[], None],
        pace: Pace | None = None,
    ) -> ServedCaller:
        access = self._security.access
        # A forwarding node watches its callers' answers itself.
        unsent = (lambda: stream.queued_bytes > 0) if kinds is not _FORWARDED else (lambda: False)
        guard = GuardedRequests(self._local, self._view, access, caller, on_revoked, unsent)
        members = GuardedMembers(self._groups, self._ask, self._view, access, caller)
        requests = RequestStream(
            stream, guard, members, members.ask_transactions, kinds, self._accepting, in_flight, pace, self._counts
        )
        return ServedCaller(requests, guard)
