"""`Producer`: records in, deliveries out.

Four ways to send, from the fastest to the most convenient (`raftlog/client/producing/sending.py`):

* `send_many`: whole columns, lists or pyarrow arrays.
* `send`: one record, no waiting. `RetriableError` (`overloaded`) when the buffer is full: `await drain()` and go on.
* `send_when_room`: the same, but waits for room instead of raising.
* `send_and_wait`: the same record by record: awaiting it gives the record's own offset.

With `acks=all` (the default) a producer is idempotent: whatever happens on the way, an acknowledged record is in the
log once, after those that were sent to its partition before it (S1). `transaction()` makes many records, in many
partitions, show together or not at all (S13); such records have a machinery of their own beside the producer's.
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
    """Sends records to topics. Belongs to one event loop; `close` it, or use it with `async with`."""

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
        """`bootstrap`: API addresses, `"host:port,host:port"`. `acks`: `"all"`, 1 or 0. `compression`: `"none"`,
        `"gzip"`, `"snappy"`, `"lz4"` or `"zstd"`. `linger_ms`: how long a batch waits for more records;
        0: only, for 5 ms at most, while its broker has an answer to give.
        `batch_bytes`: where a batch is full. `max_in_flight`: requests a broker. `buffer_bytes`: memory for records
        that are not acknowledged. `delivery_timeout_ms`: after which a batch fails. `idempotent`: None means with
        acks=all. `transactional_id`: the name under which its transactions fence those of earlier producers of the
        same name; such a producer sends in transactions only. `transaction_timeout_ms`: after which the cluster aborts
        a transaction that is open still. `ssl`: for a cluster whose data listeners speak TLS, such as
        `ssl.create_default_context(cafile="authority.pem")`. Raises `InvalidRequest` for settings that cannot be.
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
        """What is sent in `async with producer.transaction() as transaction:` by `transaction.send` and the like shows
        together when the block ends, or, where it raises, not at all (S13). One at a time. `wait` and `timeout`
        (seconds) as for `Transaction.commit`.

        Raises `InvalidRequest` (`invalid_config`) where the producer's settings allow none.
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
        """Send everything now; returns when all that was sent before this call is acknowledged.

        Raises the error of the first batch that failed since the last flush and whose error nobody has seen.
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
        """Find out about a topic beforehand, so that the first record need not wait for that. Raises `InvalidRequest`
        (`unknown_topic`) or, when the cluster cannot be reached within the delivery timeout, `RetriableError`."""
        sender = self._managed().sender if self._named else self._started()
        await sender.topic_known(check_topic_name(topic))

    async def close(self, *, flush: bool = True) -> None:
        """Flush, then let go of all connections. Raises as `flush` does, closed all the same. Closing twice is fine.

        Without `flush` (or when it is cancelled) what is not acknowledged fails as `shutting_down` if it certainly is
        not in the log, otherwise as `outcome_unknown`. A transaction that is open is aborted.
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
        """Memory that records which are not acknowledged occupy; at most about `buffer_bytes`, and as much again where
        there are transactions beside other records."""
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
            told = "a producer with a transactional id sends in transactions: `async with producer.transaction()`"
            raise InvalidRequest("invalid_request", told)
        if self._sender is None:
            self._sender = Sender(self._api, self._settings, Mending())
            self._open = self._sender.accumulator.open
        return self._sender
