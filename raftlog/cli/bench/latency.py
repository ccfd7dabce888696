"""The child that measures latency: it sends at a fixed rate, and reads its own records back.

Producer and consumer share a process and its clock, so the time from when a record was *due* until a reader has it is
one subtraction. A thread sleeps until records are due and wakes the loop: the loop's own timers have a resolution of a
millisecond, which is as long as the measured time. `pacing.py` explains why latency starts when a record is due.

Each value contains its run and its number, so foreign records do no harm. Each must be read exactly once, or the run
fails (S1): a lost record would otherwise be latency that is not measured.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from raftlog.client import Consumer, Producer
from raftlog.client.producing.delivery import DeliveryFuture
from raftlog.errors import InvariantViolation, RetriableError

from .histogram import Histogram
from .messages import MIN_LATENCY_VALUE_BYTES, Go, LatencyJob, Passed
from .pacing import Pacer
from .together import together
from .worker import Tally, Worker

NAME_BYTES = 8
NUMBER_BYTES = MIN_LATENCY_VALUE_BYTES - NAME_BYTES
BURST = 1_000
"""Maximum number of records that one turn of the loop sends after a stall."""
MIN_TICK_SECONDS = 0.0005
PATIENCE_SECONDS = 30.0
"""Time without records after which a run has failed, in seconds."""


class LatencyWorker(Worker):
    """A worker that keeps its clients for all passes."""

    def __init__(self, job: LatencyJob) -> None:
        self.tally = Tally()
        self._job = job
        access = job.access.keywords
        self._consumer = Consumer(job.bootstrap, job.topic, start="latest", **access)
        self._producer = Producer(job.bootstrap, acks=job.acks, compression=job.compression, linger_ms=0, **access)

    async def prepare(self) -> None:
        await self._producer.prepare(self._job.topic)
        await self._consumer.start()

    async def run(self, go: Go) -> Passed:
        """Measure `go.records` records.

        Raises `RaftlogError` if one was lost, came twice, or could not be sent in time.
        """
        assert go.records is not None, "the parent reckons how many"
        one = _Run(self._job, go.records, self.tally)
        began = time.monotonic()
        await together(one.send_all(self._producer), one.read_all(self._consumer))
        size = go.records * self._job.value_bytes
        return Passed(go.records, size, began, time.monotonic(), latency=one.read, acknowledged=one.acknowledged)

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._consumer.close)
            stack.push_async_callback(self._producer.close, flush=False)


class _Run:
    """One pass."""

    def __init__(self, job: LatencyJob, records: int, tally: Tally) -> None:
        self._job = job
        self._records = records
        self._tally = tally
        self._name = os.urandom(NAME_BYTES)
        self._pacer = Pacer(job.rate, time.monotonic())
        self._was_read = bytearray(records)
        self.read = Histogram()
        self.acknowledged = Histogram()

    async def send_all(self, producer: Producer) -> None:
        """Send each record when it is due. Returns when all are acknowledged."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tick() -> None:
            if done.done():
                return
            try:
                self._send_due(producer)
            except Exception as error:  # noqa: BLE001  any error: otherwise its records would count as lost
                done.set_exception(error)
            else:
                if self._pacer.sent >= self._records:
                    done.set_result(None)

        ticker = _Ticker(loop, tick, max(1 / self._job.rate, MIN_TICK_SECONDS), self._pacer.time_of(0))
        ticker.start()
        try:
            await done
        finally:
            ticker.stop()
        await producer.flush()

    async def read_all(self, consumer: Consumer) -> None:
        """Read until every record has arrived."""
        while self.read.count < self._records:
            batch = await consumer.next_batch(PATIENCE_SECONDS + 1 / self._job.rate)
            now = time.monotonic()
            if batch is None:
                missing = self._records - self.read.count
                why = f"{missing} of {self._records} records were not read, and none arrived for {PATIENCE_SECONDS} s"
                raise RetriableError("request_timed_out", f"topic {self._job.topic}: {why}")
            for value in batch.values():
                if value is not None and value.startswith(self._name):
                    self._count(int.from_bytes(value[NAME_BYTES:MIN_LATENCY_VALUE_BYTES], "big"), now)

    def _send_due(self, producer: Producer) -> None:
        for number in self._pacer.due(time.monotonic(), min(BURST, self._records - self._pacer.sent)):
            value = self._name + number.to_bytes(NUMBER_BYTES, "big")
            value += os.urandom(self._job.value_bytes - len(value))
            producer.send(self._job.topic, value).add_done_callback(partial(self._count_acknowledged, number))

    def _count_acknowledged(self, number: int, delivery: DeliveryFuture) -> None:
        if delivery.exception() is not None:
            delivery.observed = False  # `flush` raises errors that were not observed
            return
        self.acknowledged.record(self._microseconds(number, time.monotonic()))

    def _count(self, number: int, now: float) -> None:
        if self._was_read[number]:
            raise InvariantViolation(f"S1: record {number} of a run was read twice, topic {self._job.topic}")
        self._was_read[number] = 1
        took = self._microseconds(number, now)
        self.read.record(took)
        self._tally.add(1, self._job.value_bytes, took)

    def _microseconds(self, number: int, now: float) -> int:
        return round((now - self._pacer.time_of(number)) * 1e6)


class _Ticker:
    """A thread that wakes a loop at fixed moments. Missed moments are skipped, also while the loop has not handled
    the last one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Callable[[], None], every: float, at: float) -> None:
        self._loop = loop
        self._tick = tick
        self._every = every
        self._at = at
        self._stopped = False
        self._waking = False
        self._thread = threading.Thread(target=self._run, name="bench-ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End before the next tick."""
        self._stopped = True

    def _run(self) -> None:
        while True:
            wait = self._at - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            if self._stopped:
                return
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._wake)
                except RuntimeError:
                    return  # the loop is closed
            missed = max((time.monotonic() - self._at) // self._every, 0)
            self._at += (missed + 1) * self._every

    def _wake(self) -> None:
        self._waking = False
        if not self._stopped:
            self._tick()
