"""Sending columns of records to a producer: by column if columns suffice, otherwise record by record.

Records of one partition keep their order. There is no order between partitions, so records that name their partitions
may be queued partition by partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raftlog.errors import InvalidRequest

from .columns import Columns, rows_by_partition
from .tally import Tally

if TYPE_CHECKING:
    from raftlog.client import Producer


class RecordSender:
    """A queue of records for one topic. It waits for space in the producer, not for answers."""

    def __init__(self, producer: Producer, topic: str, partition: int | None, tally: Tally) -> None:
        """`partition` applies to all records, whatever they name. None: the record's own partition, or else that of
        its key."""
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._tally = tally

    async def send(self, columns: Columns) -> None:
        """Send records.

        Raises `InvalidRequest`, which names a record that cannot be sent; those before it, at least in its partition,
        are queued.
        """
        if not len(columns):
            return
        partitions = columns.partitions if self._partition is None else None
        some_have_times = columns.timestamps_ms is not None and None in columns.timestamps_ms
        some_have_partitions = partitions is not None and None in partitions
        before = self._tally.queued
        if columns.headers is not None or some_have_times or some_have_partitions:
            await self._one_by_one(columns)
        elif partitions is None:
            await self._together(columns, self._partition, range(len(columns)), before)
        else:
            for partition, rows in rows_by_partition(partitions).items():
                await self._together(columns.take(rows), partition, rows, before)

    async def _together(self, columns: Columns, partition: int | None, rows: Sequence[int], before: int) -> None:
        """Send records with one call.

        `rows` are their indexes in the piece; `before` is the number of records before the piece.
        """
        sizes = columns.sizes()
        try:
            await self._send_many(columns, partition, sizes)
        except InvalidRequest as error:
            if error.code != "batch_too_large":
                raise
            # One record is too large, so none was queued: send those before it, and name it.
            culprit = sizes.index(max(sizes))
            if culprit:
                await self._send_many(columns.first(culprit), partition, sizes[:culprit])
            raise _of_record(error, before + rows[culprit] + 1) from None

    async def _send_many(self, columns: Columns, partition: int | None, sizes: Sequence[int]) -> None:
        times: Any = columns.timestamps_ms
        deliveries = await self._producer.send_many(
            self._topic, columns.values, keys=columns.keys, partition=partition, timestamps=times
        )
        self._tally.add(deliveries, len(columns), sum(sizes))

    async def _one_by_one(self, columns: Columns) -> None:
        """Send records separately, because they differ in fields that a column cannot express."""
        # A record for a topic that the producer does not know would get its own delivery, which would count as its
        # batch.
        await self._producer.prepare(self._topic)
        for size, (value, key, timestamp_ms, headers, own) in zip(columns.sizes(), columns.rows(), strict=False):
            partition = own if self._partition is None else self._partition
            try:
                delivery = await self._producer.send_when_room(
                    self._topic, value, key, partition, timestamp_ms, None if headers is None else list(headers)
                )
            except InvalidRequest as error:
                raise _of_record(error, self._tally.queued + 1) from None
            self._tally.add([delivery], 1, size)


def _of_record(error: InvalidRequest, number: int) -> InvalidRequest:
    return InvalidRequest(error.code, f"record {number} of the input: {error.detail}")
