"""The child that produces: a pass sends values of its pool and waits for all acknowledgements.

The latency of a record is the time from when it was passed to the producer (with a limited rate: from when it was due)
until its batch is acknowledged. With `send` it is measured for the first record of a stride, which waits longest, and
counted for the whole stride; with `send_many` for each batch, from the call that gave it its first records. Reading the
clock for each record would be a tenth of the measured work.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from raftlog.client import Producer
from raftlog.client.producing.delivery import DeliveryFuture
from raftlog.errors import RetriableError

from .histogram import Histogram
from .messages import Go, Passed, ProduceJob
from .pacing import Pacer
from .values import Pool, checksum
from .worker import Tally, Worker

ONE_STRIDE = 1_000
"""Number of records between two turns of the loop, if records are sent one by one."""
MANY_STRIDE = 50_000
"""Number of records in one `send_many`."""
TURN_SECONDS = 0.002
"""Minimum pause with a limited rate, in seconds: fewer and larger strides, like those of a program with other work."""


class ProducingWorker(Worker):
    """A worker that keeps one `Producer` for all passes."""

    def __init__(self, job: ProduceJob) -> None:
        self.tally = Tally()
        self._job = job
        self._latency = Histogram()
        self._pool: Pool | None = None
        self._pool_checksum = 0
        """The checksum of a pass over all values. It is computed with the values, so that neither time nor CPU is
        measured."""
        self._last: DeliveryFuture | None = None
        """The batch that took the last record of the previous call."""
        self._producer = Producer(
            job.bootstrap,
            acks=job.acks,
            compression=job.compression,
            batch_bytes=job.batch_bytes,
            linger_ms=job.linger_ms,
            **job.access.keywords,
        )

    async def prepare(self) -> None:
        self._pool = Pool(self._job.pool_records, self._job.value_bytes)
        self._pool_checksum = checksum(self._pool.values)
        await self._producer.prepare(self._job.topic)
        warm_until = time.monotonic() + self._job.warm_up
        while time.monotonic() < warm_until:
            await self._send(self._pool.values[:MANY_STRIDE], warm_until, rate=None)
        await self._producer.flush()
        self.tally = Tally()

    async def run(self, go: Go) -> Passed | None:
        assert self._pool is not None, "prepare comes first"
        if go.salt:
            self._pool.salt()
            self._pool_checksum = checksum(self._pool.values)
            return None
        self._latency = Histogram()
        values = self._pool.values if go.records is None else self._pool.values[: go.records]
        began = time.monotonic()
        sent = await self._send(values, None if go.seconds is None else began + go.seconds, rate=self._job.rate)
        await self._producer.flush()
        ended = time.monotonic()
        total = self._pool_checksum if sent == len(self._pool.values) else checksum(values[:sent])
        return Passed(sent, sent * self._job.value_bytes, began, ended, total, self._latency)

    async def close(self) -> None:
        await self._producer.close(flush=False)

    async def _send(self, values: list[bytes], until: float | None, *, rate: float | None) -> int:
        """Send values in order until the time is over, and return their number. `flush` raises the deliveries'
        errors."""
        stride, put = (ONE_STRIDE, self._put_one) if self._job.send == "one" else (MANY_STRIDE, self._put_many)
        pacer = None if rate is None else Pacer(rate, time.monotonic())
        sent = 0
        while sent < len(values) and (until is None or time.monotonic() < until):
            now = time.monotonic()
            end, since = sent + stride, now
            if pacer is not None:
                due = pacer.due(now, stride)
                if not due:
                    await asyncio.sleep(max(pacer.wait(now), TURN_SECONDS))
                    continue
                end, since = due.stop, pacer.time_of(due.start)
            piece = values[sent:end]
            await put(piece, since)
            sent += len(piece)
        return sent

    async def _put_one(self, values: list[bytes], since: float) -> None:
        send, topic = self._producer.send, self._job.topic
        first: DeliveryFuture | None = None
        for value in values:
            try:
                delivery = send(topic, value)
            except RetriableError as error:
                if error.code != "overloaded":
                    raise
                await self._producer.drain()
                delivery = send(topic, value)
            first = first or delivery
        if first is not None:
            first.add_done_callback(partial(self._count, since, len(values)))
        await asyncio.sleep(0)

    async def _put_many(self, values: list[bytes], since: float) -> None:
        for delivery in await self._producer.send_many(self._job.topic, values):
            if delivery is not self._last:
                delivery.add_done_callback(partial(self._count, since, None))
            self._last = delivery
        await asyncio.sleep(0)

    def _count(self, since: float, records: int | None, delivery: DeliveryFuture) -> None:
        """`records` None: all records of the batch."""
        if delivery.exception() is not None:
            delivery.observed = False  # `flush` raises errors that were not observed
            return
        count = delivery.result().count if records is None else records
        took = round((time.monotonic() - since) * 1e6)
        self._latency.record(took, count)
        self.tally.add(count, count * self._job.value_bytes, took)
