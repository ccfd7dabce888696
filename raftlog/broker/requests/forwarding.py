"""Requests forwarded to the leading broker: one connection and one stream for each peer, with many requests in flight.

The connection is dialed at first use, apart from those of replication and the quorum, because forwarded produce
requests are bulk data. A request that was not sent fails with `connection_lost`, which certainly had no effect. If the
connection breaks after a produce request was sent, that request ends as `outcome_unknown`. The waiting requests are
bounded in number and in bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from raftlog.config import MIB
from raftlog.errors import RaftlogError, RetriableError, error_from_code
from raftlog.http2 import Http2Connection, Http2Stream, connect
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId, Endpoint
from raftlog.ports import Answer
from raftlog.security.principals import Caller
from raftlog.wire import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ErrorResponse,
    FetchRequest,
    FetchResponse,
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    OffsetsRequest,
    OffsetsResponse,
    PartitionsRequest,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    decode_response,
    encode,
)

from .forwarded import head_of

FORWARD_PATH = "/raftlog.forward"

MAX_WAITING_REQUESTS = 4096
MAX_WAITING_BYTES = 64 * MIB
ANSWER_GRACE_SECONDS = 2.0
"""Extra time beyond the request's own timeout after which a peer's answer counts as lost, in seconds. Dialing is
part of that time."""
OFFSETS_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.0

Forwarded: TypeAlias = PartitionsRequest | GroupHeartbeatsRequest

ResponseType = TypeVar(
    "ResponseType", ProduceResponse, FetchResponse, OffsetsResponse, DeleteRecordsResponse, GroupHeartbeatsResponse
)


class PeerRequests(Protocol):
    """The partition requests of one caller to other brokers."""

    async def produce(
        self, peer: BrokerId, request: ProduceRequest, batches: Sequence[memoryview]
    ) -> ProduceResponse: ...

    async def fetch(self, peer: BrokerId, request: FetchRequest) -> tuple[FetchResponse, memoryview]: ...

    async def offsets(self, peer: BrokerId, request: OffsetsRequest) -> OffsetsResponse: ...

    async def delete_records(self, peer: BrokerId, request: DeleteRecordsRequest) -> DeleteRecordsResponse: ...


class Forwarder:
    """Requests to other brokers. All calls are made on the broker's loop.

    `dial` returns the address of a broker's data listener, `tls` the TLS settings for it (None: plain text).
    """

    def __init__(
        self, dial: Callable[[BrokerId], Endpoint | None], tls: Callable[[BrokerId], DialTls] | None = None
    ) -> None:
        self._dial = dial
        self._tls = tls
        self._peers: dict[BrokerId, _Peer] = {}
        self._heartbeats: set[asyncio.Task[None]] = set()
        """Tasks in progress, kept alive until they end."""

    def heartbeats(
        self, peer: BrokerId, request: GroupHeartbeatsRequest, answer: Answer[GroupHeartbeatsResponse]
    ) -> None:
        """Forward heartbeats to the coordinator of groups. `answer` gets the response or a `RetriableError`."""

        async def ask() -> None:
            try:
                response, _ = await self.ask(
                    peer, request, (), GroupHeartbeatsResponse, HEARTBEAT_SECONDS, "connection_lost"
                )
            except RaftlogError as error:
                answer(error)
            except Exception as error:  # the loop reports it; the member's request must end
                answer(RetriableError("connection_lost", f"an unexpected error on this node: {error!r}"))
                raise
            else:
                answer(response)

        task = asyncio.get_running_loop().create_task(ask())
        self._heartbeats.add(task)
        task.add_done_callback(self._heartbeats.discard)

    async def close(self) -> None:
        """Drop all connections. Waiting requests end with an error."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()

    async def ask(
        self,
        peer: BrokerId,
        request: Forwarded,
        body: Sequence[memoryview],
        expected: type[ResponseType],
        seconds: float,
        lost_code: str,
        caller: Caller | None = None,
    ) -> tuple[ResponseType, memoryview]:
        """Ask a broker, at most `seconds`; `lost_code` is the error if the answer is lost. `caller` None: this node
        asks for itself, or has no security. Raises `RetriableError`, or the error that the broker told.
        """
        sent = False
        try:
            async with asyncio.timeout(seconds):
                stream = await self._peer(peer)
                sent = True
                response, content = await stream.ask(request, body, lost_code, caller)
        except TimeoutError:
            code = lost_code if sent else "connection_lost"
            raise RetriableError(code, f"broker {peer} did not answer within {seconds:.1f} s") from None
        if isinstance(response, ErrorResponse):
            raise error_from_code(response.error, response.detail)
        if not isinstance(response, expected) or _answers(response) != _questions(request):
            # The effect of the request, if any, is unknown.
            raise RetriableError(
                lost_code, f"broker {peer} sent a {type(response).__name__} that does not fit the request"
            )
        return response, content

    async def _peer(self, peer: BrokerId) -> _Peer:
        endpoint = self._dial(peer)
        if endpoint is None:
            raise RetriableError("connection_lost", f"broker {peer} is not registered")
        known = self._peers.get(peer)
        if known is None or known.endpoint != endpoint or known.lost:
            if known is not None:
                known.close()
            known = self._peers[peer] = _Peer(endpoint, self._tls(peer) if self._tls else None)
        await known.connected()
        return known


class CallerForwarder:
    """`PeerRequests` that carry their caller; what it may do is decided before and where they arrive."""

    def __init__(self, forwarder: Forwarder, caller: Caller | None) -> None:
        """`caller` None: this node has no security."""
        self._forwarder = forwarder
        self._caller = caller

    async def produce(self, peer: BrokerId, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        """Forward a produce request.

        Raises `RetriableError`: `connection_lost` or `overloaded` (not sent), `outcome_unknown` (sent).
        """
        # Without an answer the end of the request would not be known here, so `acks` 0 becomes 1.
        request = msgspec.structs.replace(request, acks=request.acks or 1)
        seconds = request.timeout_ms / 1000 + ANSWER_GRACE_SECONDS
        response, _ = await self._forwarder.ask(
            peer, request, batches, ProduceResponse, seconds, "outcome_unknown", self._caller
        )
        return response

    async def fetch(self, peer: BrokerId, request: FetchRequest) -> tuple[FetchResponse, memoryview]:
        """Forward a fetch. Raises `RetriableError`."""
        seconds = request.max_wait_ms / 1000 + ANSWER_GRACE_SECONDS
        return await self._forwarder.ask(peer, request, (), FetchResponse, seconds, "connection_lost", self._caller)

    async def offsets(self, peer: BrokerId, request: OffsetsRequest) -> OffsetsResponse:
        """Forward offset lookups. Raises `RetriableError`."""
        response, _ = await self._forwarder.ask(
            peer, request, (), OffsetsResponse, OFFSETS_SECONDS, "connection_lost", self._caller
        )
        return response

    async def delete_records(self, peer: BrokerId, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Forward a deletion.

        Raises `RetriableError`: `connection_lost` or `overloaded` (not sent), `outcome_unknown` (sent).
        """
        seconds = request.timeout_ms / 1000 + ANSWER_GRACE_SECONDS
        response, _ = await self._forwarder.ask(
            peer, request, (), DeleteRecordsResponse, seconds, "outcome_unknown", self._caller
        )
        return response


def _questions(request: Forwarded) -> int:
    return len(request.members if isinstance(request, GroupHeartbeatsRequest) else request.partitions)


def _answers(response: ResponseType) -> int:
    return len(response.errors if isinstance(response, GroupHeartbeatsResponse) else response.partitions)


class _Peer:
    """One peer's connection, from dialing to its loss. It is not used again after that."""

    def __init__(self, endpoint: Endpoint, tls: DialTls | None) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self.lost = False
        self._connection: Http2Connection | None = None
        self._stream: Http2Stream | None = None
        self._waiting: dict[int, tuple[asyncio.Future[tuple[Response, memoryview]], int, str]] = {}
        self._waiting_bytes = 0
        self._next_id = 0
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def connected(self) -> None:
        """Wait for the connection. Raises `RetriableError` (`connection_lost`)."""
        try:
            await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if not self._connecting.cancelled():
                raise  # the caller is cancelled
            raise RetriableError("connection_lost", f"the connection to {self.endpoint} was given up") from None

    async def _connect(self) -> None:
        try:
            self._connection = await connect(self.endpoint.host, self.endpoint.port, ssl=self._tls)
            self._stream = self._connection.open_stream(FORWARD_PATH, {}, self)
        except RaftlogError as error:
            raise RetriableError("connection_lost", error.detail) from None
        except (OSError, ValueError) as error:  # an invalid advertised name
            raise RetriableError("connection_lost", f"{self.endpoint}: {error}") from None
        finally:
            self.lost = self.lost or self._stream is None

    async def ask(
        self, request: Request, body: Sequence[memoryview], lost_code: str, caller: Caller | None
    ) -> tuple[Response, memoryview]:
        """Send a request and return its answer, of any kind."""
        if self._stream is None or self.lost:
            raise RetriableError("connection_lost", f"the connection to {self.endpoint} is lost")
        size = sum(part.nbytes for part in body)
        if len(self._waiting) >= MAX_WAITING_REQUESTS or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise RetriableError("overloaded", f"too many requests for {self.endpoint} are waiting")
        self._next_id += 1
        number = self._next_id
        future: asyncio.Future[tuple[Response, memoryview]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, size, lost_code)
        self._waiting_bytes += size
        try:
            message = encode(msgspec.structs.replace(request, correlation_id=number), body)
            self._stream.send(message if caller is None else [head_of(caller), *message])
            return await future
        finally:
            if self._waiting.pop(number, None) is not None:
                self._waiting_bytes -= size

    def close(self) -> None:
        """Close the connection. Waiting requests fail."""
        self._connecting.cancel()
        self._lose("closed by this node")
        if self._connection is not None:
            self._connection.close()

    # --- The stream's handler ---

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        response, body = decode_response(message)
        waiting = self._waiting.get(response.correlation_id)
        # The caller may have given up meanwhile.
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result((response, body))

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._lose(reason)
        if self._connection is not None:
            self._connection.close()

    def _lose(self, reason: str) -> None:
        self.lost = True
        for future, _, lost_code in list(self._waiting.values()):
            if not future.done():
                future.set_exception(RetriableError(lost_code, f"the connection to {self.endpoint} broke: {reason}"))
