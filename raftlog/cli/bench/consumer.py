"""The child that consumes: a pass reads every partition from the given offset, batch by batch.

Batches are converted to lists of values, to Arrow, or not at all (`decode`), in addition to the checks of CRC and log
position that a `Consumer` always makes. Bytes are counted as stored, because adding up the lengths of single values
would be a tenth of the measured work. With `each` every record is awaited separately, and the bytes are those of
values.
"""

from __future__ import annotations

import asyncio
import time

from raftlog.client import Consumer
from raftlog.client.consuming.records import ConsumedBatch
from raftlog.errors import RetriableError
from raftlog.records.batch import Codec, RecordBatch, encode

from .messages import ConsumeJob, Go, Passed
from .values import checksum
from .worker import Tally, Worker

PATIENCE_SECONDS = 30.0
"""Time without new records after which a pass has failed, in seconds."""
STRIDE = 1_000
"""Number of records between two readings of the clock, if each is awaited separately."""


class ConsumingWorker(Worker):
    """A worker that keeps one `Consumer` for all passes."""

    def __init__(self, job: ConsumeJob) -> None:
        self.tally = Tally()
        self._job = job
        self._joining = 0.0
        self._checksum = 0
        self._consumer = Consumer(job.bootstrap, job.topic, **job.access.keywords)

    async def prepare(self) -> None:
        if self._job.decode == "arrow":
            # The Arrow library is loaded at first use, which takes a while.
            RecordBatch(encode([b""], base_timestamp_ms=0, codec=Codec.NONE)).to_arrow()
        began = time.monotonic()
        await self._consumer.start()
        self._joining = time.monotonic() - began

    async def run(self, go: Go) -> Passed:
        """Read from `go.start` until `go.end` is reached everywhere, or the limit of records or seconds."""
        self._checksum = 0
        for partition, offset in go.start.items():
            # Data that was fetched before the clock started is dropped.
            await self._consumer.seek(partition, offset)
        open_partitions = {p for p, end in go.end.items() if go.start.get(p, -1) < end}
        began = time.monotonic()
        until = None if go.seconds is None else began + go.seconds
        records = size = 0
        if self._job.decode == "each":
            records, size = await self._each(open_partitions, go, until)
            return Passed(records, size, began, time.monotonic(), joining=self._joining)
        while (
            (open_partitions or not go.end)
            and (go.records is None or records < go.records)
            and (until is None or time.monotonic() < until)
        ):
            batch = await self._consumer.next_batch(_patience(until))
            if batch is None:
                if until is not None and time.monotonic() >= until:
                    break
                raise self._gave_up(records, go)
            end = go.end.get(batch.partition)
            if end is not None and batch.start_offset >= end:
                continue  # written after the pass was planned
            if end is not None and batch.end_offset >= end:
                open_partitions.discard(batch.partition)
            count = self._read(batch)
            records += count
            size += batch.size_bytes
            self.tally.add(count, batch.size_bytes)
        return Passed(records, size, began, time.monotonic(), self._checksum, joining=self._joining)

    async def close(self) -> None:
        await self._consumer.close()

    async def _each(self, open_partitions: set[int], go: Go, until: float | None) -> tuple[int, int]:
        """Read record by record. Return the number of records and bytes. The clock is read once in `STRIDE` records."""
        last = {partition: end - 1 for partition, end in go.end.items()}
        told = (0, 0)
        records = size = 0
        try:
            async with asyncio.timeout(_patience(until)) as patience:
                async for record in self._consumer:
                    end = last.get(record.partition, record.offset + 1)
                    if record.offset <= end:  # otherwise it was written after the pass was planned
                        records += 1
                        size += len(record.value or b"")
                    if record.offset >= end:
                        open_partitions.discard(record.partition)
                    done = records == go.records or (not open_partitions and bool(go.end))
                    if done or not records % STRIDE:
                        self.tally.add(records - told[0], size - told[1])
                        told = records, size
                        patience.reschedule(asyncio.get_running_loop().time() + _patience(until))
                    if done:
                        break
        except TimeoutError:
            if until is None or time.monotonic() < until:
                raise self._gave_up(records, go) from None
        return records, size

    def _read(self, batch: ConsumedBatch) -> int:
        """Convert the batch as the job demands. Return its number of records."""
        if self._job.decode == "arrow":
            return int(batch.to_arrow().num_rows)
        if self._job.decode == "none" and not self._job.checksum:
            return len(batch)
        values = batch.values()
        if self._job.checksum:
            self._checksum += checksum(values)
        return len(values)

    def _gave_up(self, records: int, go: Go) -> RetriableError:
        wanted = "" if go.records is None else f" of {go.records}"
        return RetriableError(
            "request_timed_out",
            f"topic {self._job.topic}: {records}{wanted} records were read, then none arrived for "
            f"{PATIENCE_SECONDS:.0f} s; positions {self._consumer.positions}, wanted {go.end}",
        )


def _patience(until: float | None) -> float:
    """Return the time to wait for new records, in seconds."""
    left = PATIENCE_SECONDS if until is None else max(until - time.monotonic(), 0.0)
    return min(left, PATIENCE_SECONDS)
