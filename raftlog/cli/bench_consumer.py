"""The child that consumes: a pass reads every partition from where it is told, batch by batch.

Batches are made lists of values, Arrow, or nothing (`decode`), on top of what a `Consumer` does with each by itself:
its CRC and its place in the log are checked. Bytes are counted as stored: adding up the lengths of single values would
be a tenth of the work that is measured.
"""

from __future__ import annotations

import time

from raftlog.client import Consumer
from raftlog.client.consumed import ConsumedBatch
from raftlog.errors import RetriableError
from raftlog.record_batch import Codec, RecordBatch, encode

from .bench_messages import ConsumeJob, Go, Passed
from .bench_values import checksum
from .bench_worker import Tally, Worker

PATIENCE_SECONDS = 30.0
"""Without anything new, a pass has failed."""


class ConsumingWorker(Worker):
    """Keeps one `Consumer` for all passes."""

    def __init__(self, job: ConsumeJob) -> None:
        self.tally = Tally()
        self._job = job
        self._joining = 0.0
        self._checksum = 0
        self._consumer = Consumer(job.bootstrap, job.topic)

    async def prepare(self) -> None:
        if self._job.decode == "arrow":
            # The library behind it is loaded when it is first used, which takes a while.
            RecordBatch(encode([b""], base_timestamp_ms=0, codec=Codec.NONE)).to_arrow()
        began = time.monotonic()
        await self._consumer.start()
        self._joining = time.monotonic() - began

    async def run(self, go: Go) -> Passed:
        """From `go.start`, until `go.end` is reached everywhere, or there are enough records or seconds."""
        self._checksum = 0
        for partition, offset in go.start.items():
            # What was fetched ahead, before the clock started, is dropped.
            await self._consumer.seek(partition, offset)
        open_partitions = {p for p, end in go.end.items() if go.start.get(p, -1) < end}
        began = time.monotonic()
        until = None if go.seconds is None else began + go.seconds
        records = size = 0
        while (
            (open_partitions or not go.end)
            and (go.records is None or records < go.records)
            and (until is None or time.monotonic() < until)
        ):
            patience = PATIENCE_SECONDS if until is None else max(until - time.monotonic(), 0.0)
            batch = await self._consumer.next_batch(min(patience, PATIENCE_SECONDS))
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
            self.tally.records += count
            self.tally.bytes += batch.size_bytes
        return Passed(records, size, began, time.monotonic(), self._checksum, joining=self._joining)

    async def close(self) -> None:
        await self._consumer.close()

    def _read(self, batch: ConsumedBatch) -> int:
        """What the job wants of it; how many records it has."""
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
            f"topic {self._job.topic}: {records}{wanted} records were read, then nothing came for "
            f"{PATIENCE_SECONDS:.0f} s; positions {self._consumer.positions}, wanted {go.end}",
        )
