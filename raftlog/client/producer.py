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
from typing import Unpack

from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.keywords import ProducerKeywords
from raftlog.client.producing.counts import ProduceCounts
from raftlog.client.producing.sender import Sender, SendingPolicy
from raftlog.client.producing.sending import HeadersArgument, KeyPartitions, RecordSending
from raftlog.client.settings import ProducerSettings, takes
from raftlog.client.times import Seconds
from raftlog.client.transactions.decision import DECISION_TIMEOUT, Wait
from raftlog.client.transactions.manager import TransactionManager
from raftlog.client.transactions.transaction import Transaction
from raftlog.config import check_topic_name
from raftlog.errors import ClientClosed, InvalidRequest
from raftlog.metrics import client_catalogue as names
from raftlog.metrics.measure import Family

__all__ = ["HeadersArgument", "Producer"]


class Producer(RecordSending):
    """Sends records to topics.

    A producer belongs to one event loop. `close` it, or use it with `async with`.
    """

    @takes(ProducerSettings)
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        """Configure the producer; nothing is connected yet.

        `bootstrap`: API addresses, `"host:port,host:port"`, or `"https://host:port"` if the API uses TLS. The keywords
        are the fields of `ProducerSettings`; they replace those of `settings`. Raises `InvalidRequest` for an invalid
        setting or combination of settings.
        """
        self._settings = ProducerSettings.of(settings, keywords)
        super().__init__(self._settings.linger, KeyPartitions(), self._settings.trace_context)
        self._named = self._settings.transactional_id is not None
        self._api = HttpApi(bootstrap, ConnectionSecurity(self._settings))
        self._sender: Sender | None = None
        self._transactions: TransactionManager | None = None
        self._counts = ProduceCounts()
        self._closed = False
        self._reports_loss = True

    # --- Transactions -------------------------------------------------------------------------------------------------

    def transaction(self, *, wait: Wait = "decided", timeout: Seconds = DECISION_TIMEOUT) -> Transaction:
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
            await sender.settled()
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

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self.close(flush=kind is None)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that unacknowledged records occupy.

        At most about `buffer_bytes`; twice that if transactions and other records are in use at once.
        """
        own = 0 if self._sender is None else self._sender.accumulator.buffered_bytes
        return own if self._transactions is None else own + self._transactions.buffered_bytes

    @property
    def metrics(self) -> list[Family]:
        """The producer's numbers now: buffer, batches, deliveries, retries (`docs/metrics.md`)."""
        in_flight = 0 if self._sender is None else self._sender.facts().requests
        if self._transactions is not None:
            in_flight += self._transactions.requests_in_flight
        return [
            Family.of(names.BUFFERED, self.buffered_bytes),
            Family.of(names.BUFFER_LIMIT, self._settings.buffer_bytes),
            Family.of(names.IN_FLIGHT, in_flight),
            *self._counts.families(),
        ]

    def lose_quietly(self) -> None:
        """Report no loss of records when the event loop has ended: the owner of the loop does."""
        self._reports_loss = False
        if self._sender is not None:
            self._sender.reports_loss = False

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _managed(self) -> TransactionManager:
        if self._closed:
            raise ClientClosed("the producer is closed: create a new one")
        if self._transactions is None:
            self._transactions = TransactionManager(self._api, self._settings)
            self._transactions.counts = self._counts
        return self._transactions

    def _started(self) -> Sender:
        if self._closed:
            raise ClientClosed("the producer is closed: create a new one")
        if self._named:
            told = "a producer with a transactional id sends only in transactions: `async with producer.transaction()`"
            raise InvalidRequest("invalid_request", told)
        if self._sender is None:
            self._sender = Sender(self._api, self._settings, SendingPolicy())
            self._sender.reports_loss = self._reports_loss
            self._sender.counts = self._counts
            self._open_directly(self._sender)
        return self._sender
