"""The blocking `Producer`: records go from any thread to an asyncio producer (`producer.py`) on a thread of its own.

A call to another thread costs fifty times what sending a record does, so records are not handed over one by one: `send`
puts them into a queue, and one wake-up of the loop takes all that are there. The queue is bounded in bytes; behind it
the asyncio producer has its own bound, and `send` waits while both are full. What `send` returns knows nothing of all
this until it is asked.

The order is that of the calls, `send_many` and `flush` among them: those that must come after the records that were
queued before take their place in the same queue.

What is *not* here: batches, retries, promises (`producer.py` and behind).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from raftlog.config import MIB
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import Acks

from .blocking import LoopThread, blocking
from .blocking_transaction import RECORD_BYTES, Transaction
from .delivery import RecordDelivery, RecordMetadata
from .producer import HeadersArgument
from .producer import Producer as AsyncProducer
from .producer_settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BUFFER_BYTES,
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_REQUEST_TIMEOUT_MS,
    DEFAULT_TRANSACTION_TIMEOUT_MS,
)
from .transaction import Transaction as AsyncTransaction
from .transaction_commit import DECISION_TIMEOUT, Wait

QUEUE_BYTES = 4 * MIB
"""Records that the loop has not taken yet."""
LOOK_SECONDS = 1.0
"""Who waits for room looks so often whether the loop is still there."""
RECORDS_A_TURN = 1000
REFUSED_KEPT = 1000

Result = TypeVar("Result")


class SentRecord:
    """One record on its way. Its result may be asked for by any thread, at any time, or never."""

    __slots__ = ("_delivery", "_error", "_observed", "_owner")

    def __init__(self, owner: Handover) -> None:
        self._owner = owner
        self._delivery: RecordDelivery | None = None
        self._error: Exception | None = None
        self._observed = False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, once it is acknowledged. Raises the error that ended it (as awaiting
        `Producer.send_and_wait` does), or `TimeoutError` after `timeout` seconds; it is on its way all the same."""
        return self._owner.thread.run(self._acknowledged, timeout)

    async def _acknowledged(self) -> RecordMetadata:
        if self._delivery is None and self._error is None:
            await self._owner.reached()
        if self._delivery is None:
            self._observed = True
            assert self._error is not None
            raise self._error
        return await self._delivery


class _Queued(NamedTuple):
    """Arguments of one `send`, and whose."""

    target: AsyncProducer | AsyncTransaction
    sent: SentRecord
    bytes: int
    arguments: tuple[Any, ...]


class Handover:
    """The queue between the callers' threads and the loop's."""

    def __init__(self) -> None:
        self.thread: LoopThread
        self._room = threading.Condition()
        self._queue: deque[_Queued | asyncio.Event] = deque()
        self._queued_bytes = 0
        self._closed = False
        # The loop's own:
        self._taking: asyncio.Task[None] | None = None
        self._refused: deque[SentRecord] = deque(maxlen=REFUSED_KEPT)
        """Records since the last flush that the producer did not take; the newest, where they are many."""

    # --- Callers' threads ---

    def put(self, arguments: tuple[Any, ...], size: int, target: AsyncProducer | AsyncTransaction) -> SentRecord:
        """Arguments for the target's `send_and_wait`; waits for room. Raises `RetriableError` (`shutting_down`)."""
        sent = SentRecord(self)
        with self._room:
            # A thread that has died tells nobody that it did.
            while self._queued_bytes >= QUEUE_BYTES and not (self._closed or self.thread.closed):
                self._room.wait(LOOK_SECONDS)
            if self._closed or self.thread.closed:
                raise RetriableError("shutting_down", "the producer is closed")
            first = not self._queue
            self._queue.append(_Queued(target, sent, size, arguments))
            self._queued_bytes += size
            if first:
                self.thread.call_soon(self._wake)
        return sent

    def after_queued(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """What `call` returns, awaited on the thread when all that was queued before has been taken. Raises as
        `LoopThread.run`."""

        async def later() -> Result:
            await self.reached()
            return await call()

        return self.thread.run(later, timeout)

    def close(self) -> None:
        """Whoever waits for room is told."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    # --- The loop's thread ---

    def _wake(self) -> None:
        if self._taking is None or self._taking.done():
            self._taking = asyncio.get_running_loop().create_task(self._take())

    async def _take(self) -> None:
        """All that is there. The queue is let go of before each part is worked on, so callers go on meanwhile."""
        while True:
            with self._room:
                taken, self._queue = self._queue, deque()
                self._queued_bytes = 0
                self._room.notify_all()
            if not taken:
                return
            for number, item in enumerate(taken):
                if isinstance(item, asyncio.Event):
                    item.set()
                    continue
                if number % RECORDS_A_TURN == RECORDS_A_TURN - 1:
                    await asyncio.sleep(0)  # let answers in
                await self._send(item)

    async def _send(self, queued: _Queued) -> None:
        sent = queued.sent
        try:
            while True:
                delivery = queued.target.send_and_wait(*queued.arguments)
                if isinstance(delivery, RecordDelivery):
                    sent._delivery = delivery
                    return
                delivery.close()  # the buffer is full: it would be sent when awaited, after those that come behind it
                await queued.target.drain()
        except Exception as error:  # noqa: BLE001  whatever it is, it is this record's; those behind it go on
            sent._error = error
            if isinstance(queued.target, AsyncProducer):
                self._refused.append(sent)
            else:
                broken = InvalidRequest("invalid_request", f"a record was not taken: {error!r}")
                queued.target.doom(error if isinstance(error, RaftlogError) else broken)

    async def reached(self) -> None:
        """Returns when all that was queued before this call has been taken."""
        here = asyncio.Event()
        with self._room:
            self._queue.append(here)
        self._wake()
        await here.wait()

    def raise_refused(self) -> None:
        """The error of a record that the producer did not take, unless somebody has seen it."""
        refused, self._refused = self._refused, deque(maxlen=REFUSED_KEPT)
        for sent in refused:
            if not sent._observed and sent._error is not None:
                sent._observed = True
                raise sent._error


class Producer:
    """Sends records to topics, from any thread. `close` it, or use it with `with`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: Acks | int | str = Acks.ALL,
        compression: str = "none",
        linger_ms: float = 5.0,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        max_in_flight: int = 5,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        delivery_timeout_ms: float = DEFAULT_DELIVERY_TIMEOUT_MS,
        request_timeout_ms: float = DEFAULT_REQUEST_TIMEOUT_MS,
        idempotent: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
        ssl: SSLContext | None = None,
    ) -> None:
        """The settings are those of `raftlog.Producer`. Raises `InvalidRequest` for settings that cannot be."""
        self._wrapped = AsyncProducer(
            bootstrap,
            acks=acks,
            compression=compression,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            idempotent=idempotent,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            ssl=ssl,
        )
        self._handover = Handover()
        self._thread = self._handover.thread = LoopThread(self, "producer")

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> SentRecord:
        """Queue one record, as `raftlog.Producer.send`; waits for room where the buffer is full.

        Raises `RetriableError` (`shutting_down`). What else is wrong with the record is told by the result of what this
        returns, or else by `flush`.
        """
        size = RECORD_BYTES + (len(value) if value else 0) + (len(key) if key else 0)
        return self._handover.put((topic, value, key, partition, timestamp_ms, headers), size, self._wrapped)

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None] | Any,
        *,
        keys: Sequence[bytes | None] | Any = None,
        partition: int | None = None,
        timestamps: Sequence[int] | Any = None,
    ) -> None:
        """Queue whole columns, as `raftlog.Producer.send_many`: returns when all are queued; `flush` tells of their
        acknowledgement."""

        async def send() -> None:
            await self._wrapped.send_many(topic, values, keys=keys, partition=partition, timestamps=timestamps)

        self._handover.after_queued(send)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now; returns when all that was sent before this call is acknowledged. Raises the error of the
        first record or batch that failed since the last flush and whose error nobody has seen, or `TimeoutError` after
        `timeout` seconds."""

        async def flush() -> None:
            await self._wrapped.flush()
            self._handover.raise_refused()

        self._handover.after_queued(flush, timeout)

    prepare = blocking(AsyncProducer.prepare)

    def transaction(self, *, wait: Wait = "decided", timeout: float = DECISION_TIMEOUT) -> Transaction:
        """What is sent in `with producer.transaction() as transaction:` shows together when the block ends, or, where
        it raises, not at all (S13). One at a time. Raises `InvalidRequest` (`invalid_config`)."""

        async def make() -> AsyncTransaction:
            return self._wrapped.transaction(wait=wait, timeout=timeout)

        return Transaction(self._thread.run(make), self._handover)

    @property
    def buffered_bytes(self) -> int:
        """Memory that records which are not acknowledged occupy; at most about `buffer_bytes`."""
        return self._wrapped.buffered_bytes

    def close(self, *, flush: bool = True) -> None:
        """Flush, then let go of all connections. Raises as `flush` does, closed all the same. Closing twice is fine.
        Without `flush` what is not acknowledged may be in the log or not."""
        if self._thread.closed:
            return
        try:
            if flush:
                self.flush()
        finally:
            self._handover.close()
            try:
                self._thread.run(lambda: self._wrapped.close(flush=False))
            finally:
                self._thread.stop()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(flush=kind is None)
