"""Produced batches on their way to the leader's core: each is checked once, in the partition's order of arrival.

The cost of a check depends on the uncompressed payload: microseconds for a plain batch, but a fifth of a second for a
few hundred bytes with a high compression ratio. So plain batches are checked on arrival, and compressed ones by a
worker; later batches of the partition wait behind them, because producers number their batches and may have several in
flight (S1). The queue is bounded, and a batch whose request has ended is not checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from partitions.replica.effects import RequestId
from raftlog.config import MAX_BATCH_BYTES, MIB, TopicConfig
from raftlog.errors import CorruptBatch, InvalidRequest, RaftlogError, RetriableError
from raftlog.idempotency import is_keyed
from raftlog.model import NO_PRODUCER_ID, Acks
from raftlog.ports import Buffer, Worker
from raftlog.records.batch import BatchHeader, ControlKind, RecordBatch, validate
from raftlog.records.batch_filter import has_record_without_key, is_hole
from raftlog.records.header import is_compressed

MAX_WAITING_BATCHES = 1000
MAX_WAITING_BYTES = 64 * MIB
"""Bounds for one partition's unchecked batches; more are refused as `overloaded`."""
MAX_BATCHES_A_JOB = 16
"""Batches that a worker checks in one job, so that others get their turn."""


class Arrival(msgspec.Struct):
    """A batch as it arrived. `wall_ms` is the time of arrival, in milliseconds since 1970."""

    request: RequestId
    batch: Buffer
    acks: Acks
    config: TopicConfig
    wall_ms: int
    resent: bool = False
    restored: bool = False
    expected_end_offset: int = -1


class IncomingBatches:
    """The batches of one partition that are not checked yet.

    Invariant: a worker has the first `_checking` batches of `_waiting`; the others wait behind them.
    """

    def __init__(
        self,
        worker: Worker,
        wanted: Callable[[RequestId], bool],
        checked: Callable[[Arrival, BatchHeader | RaftlogError], None],
    ) -> None:
        """`wanted` returns whether a request still waits for its answer.

        `checked` is called once for each arrival that is still wanted, in the order of arrival, perhaps before `arrive`
        returns.
        """
        self._worker = worker
        self._wanted = wanted
        self._checked = checked
        self._waiting: deque[Arrival] = deque()
        self._waiting_bytes = 0
        self._checking = 0

    def arrive(self, arrival: Arrival) -> None:
        """Check the next batch, now or after the ones before it."""
        size = memoryview(arrival.batch).nbytes
        if not self._waiting and not is_compressed(arrival.batch):
            self._checked(arrival, _check(arrival))
        elif len(self._waiting) >= MAX_WAITING_BATCHES or self._waiting_bytes + size > MAX_WAITING_BYTES:
            self._checked(
                arrival,
                RetriableError("overloaded", "too many compressed batches are waiting to be checked: retry later"),
            )
        else:
            self._waiting.append(arrival)
            self._waiting_bytes += size
            self._check_next()

    def close(self) -> None:
        """Drop all unchecked batches, without callbacks."""
        self._waiting.clear()

    def _check_next(self) -> None:
        if self._checking:
            return
        while self._waiting and not self._wanted(self._waiting[0].request):
            self._take()
        if not self._waiting:
            return
        arrivals = [self._waiting[position] for position in range(min(len(self._waiting), MAX_BATCHES_A_JOB))]
        self._checking = len(arrivals)
        self._worker.submit(lambda: [_check(arrival) for arrival in arrivals], self._on_checked)

    def _on_checked(self, headers: list[BatchHeader | RaftlogError] | None, error: BaseException | None) -> None:
        unchecked = RaftlogError("internal_error", f"the batch could not be checked: {error!r}")
        try:
            for position in range(min(self._checking, len(self._waiting))):
                arrival = self._take()
                if self._wanted(arrival.request):
                    self._checked(arrival, unchecked if headers is None else headers[position])
                if not self._waiting:
                    break  # closed meanwhile, or the last one
        finally:
            # Not earlier: a producer that was just answered may have sent its next batch, which has to wait for its
            # turn.
            self._checking = 0
        self._check_next()

    def _take(self) -> Arrival:
        arrival = self._waiting.popleft()
        self._waiting_bytes -= memoryview(arrival.batch).nbytes
        return arrival


def _check(arrival: Arrival) -> BatchHeader | RaftlogError:
    try:
        if arrival.restored:
            return check_restored(arrival.batch, arrival.config)
        return check_incoming(arrival.batch, arrival.config, arrival.wall_ms)
    except RaftlogError as error:
        return error


def check_incoming(batch: Buffer, config: TopicConfig, wall_ms: int) -> BatchHeader:
    """Check a producer's batch, once, at the leader (S11). Pure, and thread-safe.

    Raises `InvalidRequest`, and `RetriableError` (`topic_restoring`).
    """
    if config.is_restoring:
        raise RetriableError("topic_restoring", "the topic is being restored from a backup, and takes no other batches")
    header = validate(batch, max_batch_bytes=config.max_message_bytes)
    ahead_ms = header.max_timestamp - wall_ms
    if config.message_timestamp_type == "CreateTime" and ahead_ms > config.message_timestamp_after_max_ms:
        raise InvalidRequest(
            "timestamp_out_of_range",
            f"the batch is {ahead_ms} ms ahead of the clock; {config.message_timestamp_after_max_ms} are allowed",
        )
    if config.compacts and has_record_without_key(RecordBatch(batch, crc_checked=True)):
        raise InvalidRequest("invalid_record", "the topic is compacted by key, but a record of the batch has no key")
    return header


def check_restored(batch: Buffer, config: TopicConfig) -> BatchHeader:
    """Check a batch of a backup, as a leader had it: it may be a marker, have holes, or be one (S11).

    Raises `InvalidRequest` and, for damage, `CorruptBatch`.
    """
    if not config.is_restoring:
        raise InvalidRequest("invalid_request", "the topic is not being restored: it takes batches of producers only")
    size = memoryview(batch).nbytes
    if size > MAX_BATCH_BYTES:
        raise InvalidRequest(
            "batch_too_large", f"the batch has {size} bytes, but at most {MAX_BATCH_BYTES} are possible"
        )
    decoded = RecordBatch(batch)
    decoded.check()
    header, control = decoded.header, decoded.control
    named = [entry.producer_id for entry in control.entries] if control is not None else []
    if control is not None and control.kind not in (ControlKind.ABORT, ControlKind.COMMIT):
        raise CorruptBatch(f"a marker of the unknown kind {control.kind}")
    # Idempotency keys are none of the granted ids, and those of another topic never fit one of this. The id of a hole
    # is a bound on forgotten producers, which no key is.
    counted = NO_PRODUCER_ID if is_keyed(header.producer_id) and not is_hole(header) else header.producer_id
    if max(counted, *named, -1) >= config.restoring:
        raise InvalidRequest(
            "invalid_request", f"the batch has producer ids that are not below {config.restoring}, which is reserved"
        )
    if header.is_transactional and not header.is_control and min(header.producer_id, header.producer_epoch) < 0:
        raise CorruptBatch("a batch of a transaction has no producer")
    if not header.is_control and header.producer_epoch >= 0 and min(header.producer_id, header.base_sequence) < 0:
        raise CorruptBatch("a batch has a producer epoch without a producer id or a sequence")
    return header
