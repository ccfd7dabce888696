"""One broker's produce requests: batches are encoded, sent in the order in which they were taken, and answered.

Encoding without compression is cheap and runs inline; compression runs on threads, and so does the first large batch,
which loads pyarrow (0.2 s). The order must not change: a request waits until those before it are encoded, too. A
thread's input (columns and names) is fixed before it starts, since a batch may be taken back and renamed meanwhile;
attempts that no longer count are not sent.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

from raftlog.client.cluster.broker_request import BrokerRequest
from raftlog.client.cluster.transport import Connection
from raftlog.client.settings import ProducerSettings
from raftlog.config import KIB
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Acks
from raftlog.records.batch import ARROW_FROM, Codec, encode
from raftlog.wire import (
    PRODUCE_PATH,
    ErrorResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Response,
)

from .batch import Batch
from .delivery import DeliveryFuture
from .sequencer import Sequencer

ANSWER_GRACE = 5.0
"""Seconds that a broker has beyond the timeout in the request."""
INLINE_COMPRESSION_BYTES = 16 * KIB
"""Size up to which compressing inline is faster than handing it to a thread, in bytes."""

Attempt: TypeAlias = tuple[Batch[DeliveryFuture], int]
"""A batch and the number of its attempt."""
Encoded: TypeAlias = bytes | RaftlogError
"""A batch's encoded bytes, or the error of encoding it."""


@dataclass(slots=True)
class _Outgoing:
    """A request waiting to be sent.

    `payloads`, one per batch, is None while a thread encodes them.
    """

    connection: Connection
    attempts: list[Attempt]
    payloads: list[Encoded] | None = None


class ProduceRequests:
    """Requests to one broker, over one connection after the other."""

    _arrow_loaded: ClassVar[bool] = False
    """Whether pyarrow is loaded in this process."""

    def __init__(
        self,
        topic_ids: Mapping[str, bytes],
        settings: ProducerSettings,
        transactional: bool,
        *,
        answered: Callable[[Sequence[tuple[Attempt, ProducedPartition]]], None],
        lost: Callable[[Sequence[Attempt], RaftlogError], None],
    ) -> None:
        """Configure the callbacks. The caller keeps `topic_ids` current.

        `transactional`: every batch belongs to a transaction.

        Every attempt given to a lane ends in one of the two calls, unless it was taken back before it was sent. A batch
        that could not be sent, or, with acks=0, was sent, counts as answered: nothing more will be known.
        """
        self._topic_ids = topic_ids
        self._on_answered = answered
        self._on_lost = lost
        self._acks = settings.level
        self._codec = settings.codec
        self._request_timeout = settings.request_timeout_ms / 1000
        self._transactional = transactional
        self._outgoing: deque[_Outgoing] = deque()
        self.requests = 0
        """Number of requests given to this lane and not answered."""

    def send(self, connection: Connection, batches: Sequence[Batch[DeliveryFuture]]) -> None:
        """Send one request with these batches."""
        outgoing = _Outgoing(connection, [(batch, batch.attempt) for batch in batches])
        self.requests += 1
        self._outgoing.append(outgoing)
        work = [_encoding(batch, self._codec, self._transactional) for batch in batches]
        small = self._codec is Codec.NONE or sum(batch.size_bytes for batch in batches) <= INLINE_COMPRESSION_BYTES
        loads = not ProduceRequests._arrow_loaded and any(batch.count >= ARROW_FROM for batch in batches)
        if small and not loads:
            self._encoded(outgoing, _run(work))
            return

        def done(future: asyncio.Future[list[Encoded]]) -> None:
            ProduceRequests._arrow_loaded = ProduceRequests._arrow_loaded or loads
            if not future.cancelled():
                self._encoded(outgoing, future.result())

        try:
            encoding = asyncio.get_running_loop().run_in_executor(None, _run, work)
        except RuntimeError:  # the system has no thread left: encode inline, so that requests behind it can continue
            self._encoded(outgoing, _run(work))
        else:
            encoding.add_done_callback(done)

    def _encoded(self, outgoing: _Outgoing, payloads: list[Encoded]) -> None:
        outgoing.payloads = payloads
        while self._outgoing:
            head = self._outgoing[0]
            if head.payloads is None:
                return
            self._outgoing.popleft()
            self._to_wire(head.connection, head.attempts, head.payloads)

    def _to_wire(self, connection: Connection, attempts: list[Attempt], encoded: list[Encoded]) -> None:
        for attempt, result in zip(attempts, encoded, strict=True):
            if isinstance(result, RaftlogError):  # attempts that depend on it will no longer count
                self._on_answered([(attempt, ProducedPartition(bytes(16), 0, result.code, result.detail))])
        current = [
            (attempt, payload)
            for attempt, payload in zip(attempts, encoded, strict=True)
            if not isinstance(payload, RaftlogError) and attempt[0].attempt == attempt[1]
        ]
        if not current:
            self.requests -= 1
            return
        attempts, payloads = [attempt for attempt, _ in current], [payload for _, payload in current]
        partitions = [
            ProducePartition(self._topic_ids.get(batch.topic, bytes(16)), batch.partition, len(payload), batch.resent)
            for (batch, _), payload in zip(attempts, payloads, strict=True)
        ]
        timeout_ms = int(self._request_timeout * 1000)
        request = BrokerRequest(
            PRODUCE_PATH,
            lambda correlation_id: ProduceRequest(correlation_id, int(self._acks), timeout_ms, partitions),
            self._request_timeout + ANSWER_GRACE,
            answered=partial(self._answered, connection, attempts),
            lost=partial(self._lost, attempts),
            body=payloads,
            answer_expected=self._acks is not Acks.NONE,
        )
        try:
            connection.request(request)
        except RaftlogError as error:
            self._refused(attempts, error.code, error.detail)  # nothing was sent
            return
        if self._acks is Acks.NONE:
            self.requests -= 1
            self._on_answered([(attempt, ProducedPartition(bytes(16), 0)) for attempt in attempts])

    def _answered(self, connection: Connection, attempts: list[Attempt], response: Response, body: memoryview) -> None:
        if isinstance(response, ErrorResponse):
            self._refused(attempts, response.error, response.detail)
            return
        if not isinstance(response, ProduceResponse) or len(response.partitions) != len(attempts):
            self._lost(attempts, RemoteProtocolError("the answer does not match its request"))
            connection.close("an answer did not match its request")
            return
        self.requests -= 1
        self._on_answered(list(zip(attempts, response.partitions, strict=True)))

    def _refused(self, attempts: list[Attempt], code: str, detail: str) -> None:
        refused = ProducedPartition(bytes(16), 0, code, detail)
        self.requests -= 1
        self._on_answered([(attempt, refused) for attempt in attempts])

    def _lost(self, attempts: list[Attempt], error: RaftlogError) -> None:
        self.requests -= 1
        self._on_lost(attempts, error)


def sequencer_of(lanes: Mapping[int, ProduceRequests], settings: ProducerSettings) -> Sequencer[DeliveryFuture]:
    """Return a sequencer that serves these lanes.

    A producer that lingers has gathered records by the time that a batch is due. One that does not (`linger` 0) would
    send each record in its own request, however many are in flight; then every hop falls behind, and each request waits
    for all before it. So records that arrive while a broker has a request in flight go into the next one (Nagle's
    algorithm, RFC 896), unless they fill a batch or have waited for `GATHER_AT_MOST`.
    """

    def busy(leader: int) -> bool:
        lane = lanes.get(leader)
        return lane is not None and lane.requests > 0

    return Sequencer(
        idempotent=settings.is_idempotent,
        delivery_timeout=settings.delivery_timeout,
        random=random.Random(),
        busy=(lambda leader: False) if settings.linger > 0 else busy,
    )


def _encoding(batch: Batch[DeliveryFuture], codec: Codec, transactional: bool) -> Callable[[], bytes]:
    values, keys, timestamps, headers = batch.columns()
    return partial(
        encode,
        values,
        keys=keys,
        timestamps_ms=timestamps,
        headers=headers,
        codec=codec,
        base_timestamp_ms=batch.timestamp_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=transactional,
    )


def _run(work: Sequence[Callable[[], bytes]]) -> list[Encoded]:
    return [_outcome(encoding) for encoding in work]


def _outcome(encoding: Callable[[], bytes]) -> Encoded:
    try:
        return encoding()
    except RaftlogError as error:
        return error
    except (MemoryError, OSError, ImportError) as error:  # the last two: a library that is loaded on demand
        return RetriableError(
            "overloaded", f"the batch could not be encoded for lack of resources: {type(error).__name__}: {error}"
        )
    except Exception as error:  # noqa: BLE001  requests behind it in the lane must continue
        what = f"these records cannot be encoded: {type(error).__name__}: {error}"
        return InvalidRequest("invalid_request", what)
