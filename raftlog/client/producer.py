"""`Producer`: sends records to topics.

There are four ways to send, from the fastest to the most convenient (`raftlog/client/producing/sending.py`):

* `send_many` takes whole columns, lists or pyarrow arrays.
* `send` takes one record and does not wait. If the buffer is full, it raises `RetriableError` (`overloaded`): `await
  drain()` and send again.
* `send_when_room` does the same, but waits for room instead of raising.
* `send_and_wait` also waits for room; awaiting its result gives the record's own offset.

With `acks=all` (the default) a producer is idempotent: whatever fails on the way, an acknowledged record is in the log
exactly once, after the records that were sent to its partition before it (S1). `transaction()` makes many records in
many partitions visible together or not at all (S13); its records have an accumulator and a sender of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from ssl import SSLContext
from types import TracebackType

from raftlog.client.cluster.api import HttpApi
from raftlog.client.producing.sender import Mending, Sender
from raftlog.client.producing.sending import HeadersArgument, KeyPartitions, RecordSending
from raftlog.client.producing.settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BUFFER_BYTES,
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_REQUEST_TIMEOUT_MS,
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    ProducerSettings,
    TransactionSettings,
    parse_acks,
    parse_codec,
    parse_idempotent,
)
from raftlog.client.transactions.decision import DECISION_TIMEOUT, Wait
from raftlog.client.transactions.manager import TransactionManager
from raftlog.client.transactions.transaction import Transaction
from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import Acks

__all__ = ["HeadersArgument", "Producer"]


class Producer(RecordSending):
    """Sends records to topics.

    A producer belongs to one event loop. `close` it, or use it with `async with`.
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
        """Configure the producer; nothing is connected yet.

        * `bootstrap`: API addresses, `"host:port,host:port"`.
        * `acks`: `"all"`, 1 or 0.
        * `compression`: `"none"`, `"gzip"`, `"snappy"`, `"lz4"` or `"zstd"`.
        * `linger_ms`: how long a batch waits for more records. With 0, a batch waits only while its broker has a
          request in flight, and 5 ms at most.
        * `batch_bytes`: the size at which a batch is full.
        * `max_in_flight`: requests in flight per broker.
        * `buffer_bytes`: memory for records that are not acknowledged yet.
        * `delivery_timeout_ms`: the time after which a batch fails.
        * `idempotent`: None means True with acks=all.
        * `transactional_id`: the name under which the producer's transactions fence those of earlier producers of the
          same name. Such a producer sends only in transactions.
        * `transaction_timeout_ms`: the time after which the cluster aborts a transaction that is still open.
        * `ssl`: for a cluster whose data listeners speak TLS, such as
          `ssl.create_default_context(cafile="authority.pem")`.

        Raises `InvalidRequest` for an invalid setting or combination of settings.
        """
        level = parse_acks(acks)
        self._settings = ProducerSettings(
            acks=level,
            codec=parse_codec(compression),
            linger=linger_ms / 1000,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            delivery_timeout=delivery_timeout_ms / 1000,
            request_timeout=request_timeout_ms / 1000,
            idempotent=parse_idempotent(idempotent, level),
        )
        super().__init__(self._settings.linger, KeyPartitions())
        self._named = transactional_id is not None
        self._transactional = TransactionSettings(transactional_id, transaction_timeout_ms)
        if self._named:
            self._transactional.check(self._settings)
        self._api = HttpApi(bootstrap, ssl)
        self._sender: Sender | None = None
        self._transactions: TransactionManager | None = None
        self._closed = False

    # --- Transactions -------------------------------------------------------------------------------------------------

    def transaction(self, *, wait: Wait = "decided", timeout: float = DECISION_TIMEOUT) -> Transaction:
        """Return a transaction: `async with producer.transaction() as transaction:`.

        Everything that `transaction.send` and its siblings send becomes visible together when the block ends, or, if
        the block raises, not at all (S13). A producer has one open transaction at a time. `wait` and `timeout`
        (seconds) are those of `Transaction.commit`.

        Raises `InvalidRequest` (`invalid_config`) if the producer's settings do not allow transactions.
        """
        return Transaction(
            manager=self._managed(),
            linger=self._settings.linger,
            key_partitions=self._key_partitions,
            wait=wait,
            timeout=timeout,
        )

    # --- Waiting ------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send everything now, and return once every record sent before this call is acknowledged.

        Raises the error of the first batch that failed since the last flush and whose delivery was not awaited.
        """
        if self._sender is not None:
            sender = self._sender
            sender.accumulator.seal_all()
            sender.pump()
            for delivery in sender.unfinished():
                await delivery.settled()
            failed = [delivery for delivery in sender.failed if not delivery.observed]
            sender.failed.clear()
            if failed:
                failed[0].result()

    async def prepare(self, topic: str) -> None:
        """Look up a topic in advance, so that the first record need not wait for its metadata.

        Raises `InvalidRequest` (`unknown_topic`), or `RetriableError` if the cluster cannot be reached within the
        delivery timeout.
        """
        sender = self._managed().sender if self._named else self._started()
        await sender.topic_known(check_topic_name(topic))

    async def close(self, *, flush: bool = True) -> None:
        """Flush, then close all connections. Closing twice is allowed.

        Raises as `flush` does; the producer is closed nevertheless. Without `flush` (or if this call is cancelled), a
        record that is not acknowledged fails as `shutting_down` if it is certainly not in the log, and as
        `outcome_unknown` otherwise. An open transaction is aborted.
        """
        if self._closed:
            return
        try:
            if flush:
                await self.flush()
        finally:
            self._closed = True
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._api.close)
                if self._sender is not None:
                    stack.push_async_callback(self._sender.close)
                if self._transactions is not None:
                    stack.push_async_callback(self._transactions.close)

    async def __aenter__(self) -> Producer:
        if not self._named:
            self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that unacknowledged records occupy.

        At most about `buffer_bytes`; twice that if transactions and other records are in use at once.
        """
        own = 0 if self._sender is None else self._sender.accumulator.buffered_bytes
        return own if self._transactions is None else own + self._transactions.buffered_bytes

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _managed(self) -> TransactionManager:
        if self._closed:
            raise RetriableError("shutting_down", "the producer is closed")
        if self._transactions is None:
            self._transactional.check(self._settings)
            self._transactions = TransactionManager(self._api, self._settings, self._transactional)
        return self._transactions

    def _started(self) -> Sender:
        if self._closed:
            raise RetriableError("shutting_down", "the producer is closed")
        if self._named:
            told = "a producer with a transactional id sends only in transactions: `async with producer.transaction()`"
            raise InvalidRequest("invalid_request", told)
        if self._sender is None:
            self._sender = Sender(self._api, self._settings, Mending())
            self._open = self._sender.accumulator.open
        return self._sender
