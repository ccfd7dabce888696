"""The blocking `Producer`: an asyncio producer (`raftlog/client/producer.py`) on a thread of its own.

Any thread may send. Records are passed on through a queue that is bounded in bytes (`handover.py`); the asyncio
producer behind it has its own bound, and `send` waits while both are full. The result of `send` does no work until it
is read.

Records are sent in the order of the calls; `send_many` and `flush` keep that order by passing through the same queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any

from raftlog.client.producer import HeadersArgument
from raftlog.client.producer import Producer as AsyncProducer
from raftlog.client.producing.settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BUFFER_BYTES,
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_REQUEST_TIMEOUT_MS,
    DEFAULT_TRANSACTION_TIMEOUT_MS,
)
from raftlog.client.transactions.decision import DECISION_TIMEOUT, Wait
from raftlog.client.transactions.transaction import Transaction as AsyncTransaction
from raftlog.model import Acks

from .handover import RECORD_BYTES, Handover, SentRecord
from .loop_thread import LoopThread, blocking
from .transaction import Transaction


class Producer:
    """Sends records to topics, from any thread.

    `close` it, or use it with `with`.
    """

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
        """The settings are those of `raftlog.Producer`. Raises `InvalidRequest` for invalid ones."""
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
        self._thread = LoopThread(self, "producer")
        self._handover = Handover(self._thread)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> SentRecord:
        """Queue one record, as `raftlog.Producer.send` does, but wait for room if the buffer is full.

        Raises `RetriableError` (`shutting_down`). Any other error of the record is raised by the result of the returned
        object, or else by `flush`.
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
        """Queue whole columns, as `raftlog.Producer.send_many` does, and return once all are queued.

        `flush` waits for their acknowledgements.
        """

        async def send() -> None:
            await self._wrapped.send_many(topic, values, keys=keys, partition=partition, timestamps=timestamps)

        self._handover.after_queued(send)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now, and return once every record sent before this call is acknowledged.

        Raises the error of the first record or batch that failed since the last flush and whose result was not read, or
        `TimeoutError` after `timeout` seconds.
        """

        async def flush() -> None:
            await self._wrapped.flush()
            self._handover.raise_refused()

        self._handover.after_queued(flush, timeout)

    prepare = blocking(AsyncProducer.prepare)

    def transaction(self, *, wait: Wait = "decided", timeout: float = DECISION_TIMEOUT) -> Transaction:
        """Return a transaction: `with producer.transaction() as transaction:`.

        Everything sent by it becomes visible together when the block ends, or, if the block raises, not at all (S13). A
        producer has one open transaction at a time. Raises `InvalidRequest` (`invalid_config`).
        """

        async def make() -> AsyncTransaction:
            return self._wrapped.transaction(wait=wait, timeout=timeout)

        return Transaction(self._thread.run(make), self._handover)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that unacknowledged records occupy; at most about `buffer_bytes`."""
        return self._wrapped.buffered_bytes

    def close(self, *, flush: bool = True) -> None:
        """Flush, then close all connections. Closing twice is allowed.

        Raises as `flush` does; the producer is closed nevertheless. Without `flush`, the outcome of unacknowledged
        records is unknown.
        """
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
