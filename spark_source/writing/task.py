"""A task of a writing query, in one of Spark's worker processes: rows in, one message out.

With `exactlyOnce` (the default) each attempt writes a transaction of its own and leaves it prepared: everything is
acknowledged, and the driver decides on its commit (S13). A failing attempt aborts its transaction; a killed one is
aborted when its block is retired. Without `exactlyOnce`, an idempotent producer sends records, which are visible at
once.

The event loop's thread sends; Spark's thread passes it one batch after the other, and waits while the buffer is full.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from raftlog.api.transactions import ProducerIdBlock
from raftlog.client.cluster.api import HttpApi
from raftlog.client.producer import Producer
from raftlog.client.producing.sending import KeyPartitions, RecordSending
from raftlog.client.settings import ProducerSettings
from raftlog.client.transactions.api import TransactionApi
from raftlog.client.transactions.decision import DECISION_TIMEOUT
from raftlog.client.transactions.manager import TransactionManager
from raftlog.client.transactions.transaction import Transaction
from raftlog.config import KIB
from raftlog.errors import RemoteProtocolError
from spark_source.connections import security_of, shared

from .claims import AttemptNumbers, position_of
from .columns import SinkColumns
from .names import IDS_PER_BLOCK, BatchJob, MicroBatch, place
from .options import SinkOptions
from .publication import Written
from .rows import Rows, records, split

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger("raftlog.spark")

BATCH_BYTES = 512 * KIB
"""Larger than a producer's default: Spark's rows come by the ten thousand, and large batches are read faster."""
LINGER_S = 0.02
REQUEST_TIMEOUT_S = 30.0

_numbers: WeakKeyDictionary[HttpApi, AttemptNumbers] = WeakKeyDictionary()
"""The claimed numbers of this process, for the life of these connections."""


def write(
    options: SinkOptions,
    columns: SinkColumns,
    work: MicroBatch | BatchJob,
    task_attempt_id: int,
    batches: Iterator[pyarrow.RecordBatch],
) -> Written:
    """Write all rows of `batches`. `task_attempt_id`: Spark's. Raises a `RaftlogError`; then no row becomes visible,
    except in queries without `exactlyOnce`."""
    connections = shared(options.cluster)

    async def begin() -> _Task:
        if not options.exactly_once:
            return _PlainTask(options, columns)
        return _TransactionTask(connections.api, options, columns, work, task_attempt_id)

    task = connections.run(begin)
    try:
        for batch in batches:
            if batch.num_rows:
                connections.run(partial(task.put, batch))
        return connections.run(task.finish)
    finally:
        connections.run(task.close)


class _Task:
    """A task's writer. Belongs to one event loop; must be closed."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._rows = 0

    async def put(self, batch: pyarrow.RecordBatch) -> None:
        """Send these rows; returns once the buffer has taken them. Raises a `RaftlogError`."""
        sender = await self._sender()
        if sender is None:
            return
        for rows in split(batch, self._columns, self._options.topic):
            await _send(sender, rows)
            self._rows += rows.size

    async def finish(self) -> Written:
        """Wait until everything is acknowledged. Raises a `RaftlogError`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release the resources; unfinished work is aborted if possible."""
        raise NotImplementedError

    async def _sender(self) -> RecordSending | None:
        """Return the sender, or None if nothing is left to send."""
        raise NotImplementedError


async def _send(sender: RecordSending, rows: Rows) -> None:
    if rows.headers is None:
        await sender.send_many(rows.topic, rows.values, keys=rows.keys, partition=rows.partition)
        return
    # Headers are rare, and the producer has no column form for them.
    for value, key, pairs in records(rows):
        await sender.send_when_room(rows.topic, value, key, rows.partition, None, pairs)


class _PlainTask(_Task):
    """A writer without a transaction: every record once per attempt, visible at once."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        super().__init__(options, columns)
        settings = _producer_settings(options)
        self._producer = Producer(options.cluster.bootstrap, settings=settings, **security_of(options.cluster))

    async def _sender(self) -> RecordSending:
        return self._producer

    async def finish(self) -> Written:
        await self._producer.flush()
        return Written(None, rows=self._rows)

    async def close(self) -> None:
        await self._producer.close(flush=False)


class _TransactionTask(_Task):
    """A writer with one transaction per attempt. It begins with the first rows: a task without rows costs the cluster
    nothing."""

    def __init__(
        self, api: HttpApi, options: SinkOptions, columns: SinkColumns, work: MicroBatch | BatchJob, attempt: int
    ) -> None:
        super().__init__(options, columns)
        self._http = api
        self._api = TransactionApi(api)
        self._work = work
        self._task_attempt_id = attempt
        self._number = -1
        self._manager: TransactionManager | None = None
        self._transaction: Transaction | None = None
        self._was_published = False

    async def _sender(self) -> RecordSending | None:
        if self._transaction is None and not self._was_published:
            await self._begin()
        return self._transaction

    async def finish(self) -> Written:
        if self._transaction is None:
            return Written(self._work, self._number)
        output = await self._transaction.prepare()
        return Written(self._work, self._number, output, self._rows)

    async def close(self) -> None:
        if self._manager is not None:
            # It aborts a transaction that is still open; a prepared one is not.
            await self._manager.close()

    async def _begin(self) -> None:
        options, work = self._options, self._work
        self._number = await self._claim()
        producer_id = await self._producer_id()
        # In this order: a driver that publishes after this check retires the block, which aborts all later writes.
        if isinstance(work, MicroBatch) and await position_of(self._api, work.position) >= work.batch_id:
            logger.warning("%s was published before: nothing of it is written again", work)
            self._was_published = True
            return
        self._manager = TransactionManager(self._http, _producer_settings(options))
        self._manager.api = _OneId(self._http, producer_id)
        transaction = Transaction(self._manager, LINGER_S, KeyPartitions(), "decided", DECISION_TIMEOUT)
        # Not as a `with` block, whose end would commit it: the driver decides.
        self._transaction = await transaction.__aenter__()

    async def _producer_id(self) -> int:
        name, index = place(self._work.work, self._number)
        timeout_ms = self._options.transaction_timeout_ms
        block = await self._api.open_block(name, IDS_PER_BLOCK, timeout_ms, timeout=REQUEST_TIMEOUT_S)
        if block.count != IDS_PER_BLOCK:
            raise RemoteProtocolError(f"the block {name} has {block.count} producer ids, not {IDS_PER_BLOCK}")
        return block.first_producer_id + index

    async def _claim(self) -> int:
        if not isinstance(self._work, MicroBatch):
            return self._task_attempt_id
        numbers = _numbers.get(self._http)
        if numbers is None:
            numbers = _numbers[self._http] = AttemptNumbers(self._api)
        return await numbers.next(self._work.attempts, timeout=REQUEST_TIMEOUT_S)


def _producer_settings(options: SinkOptions) -> ProducerSettings:
    return ProducerSettings(
        compression=options.compression,
        linger_ms=LINGER_S * 1000,
        batch_bytes=BATCH_BYTES,
        delivery_timeout_ms=options.delivery_timeout_ms,
        transaction_timeout_ms=options.transaction_timeout_ms,
    )


class _OneId(TransactionApi):
    """The source of the transaction's producer id: the attempt's place in the block of its work."""

    def __init__(self, api: HttpApi, producer_id: int) -> None:
        super().__init__(api)
        self._producer_id = producer_id

    async def open_block(self, name: str, count: int, timeout_ms: int, *, timeout: float) -> ProducerIdBlock:
        return ProducerIdBlock(self._producer_id, 1)
