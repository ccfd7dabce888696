"""Counts of what a producer delivered. Plain numbers, changed once for each batch or failed attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from raftlog.metrics import client_catalogue as names
from raftlog.metrics.histogram import BYTES, SECONDS, SIZES, Histogram
from raftlog.metrics.measure import Family


class ProduceCounts:
    """The counts of one producer, over all of its senders. They only rise."""

    def __init__(self) -> None:
        self._records: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()
        self._retries: Counter[str] = Counter()
        self._batch_records = Histogram(SIZES)
        self._batch_bytes = Histogram(BYTES)
        self._seconds = Histogram(SECONDS)

    def acknowledged(self, topic: str, records: int, nbytes: int, seconds: float) -> None:
        """Count a batch; `nbytes` before compression, `seconds` since it was opened."""
        self._records[topic] += records
        self._bytes[topic] += nbytes
        self._batch_records.observe(records)
        self._batch_bytes.observe(nbytes)
        self._seconds.observe(seconds)

    def failed(self, topic: str, records: int, code: str) -> None:
        """Count records that will not be delivered."""
        self._failed[topic, code] += records

    def retried(self, code: str) -> None:
        """Count an attempt that failed and will be made again."""
        self._retries[code] += 1

    def families(self) -> Iterator[Family]:
        """Yield the families."""
        yield Family(names.ACKNOWLEDGED_RECORDS, [((topic,), count) for topic, count in self._records.items()])
        yield Family(names.ACKNOWLEDGED_BYTES, [((topic,), count) for topic, count in self._bytes.items()])
        yield Family(names.FAILED_RECORDS, [(key, count) for key, count in self._failed.items()])
        yield Family(names.RETRIES, [((code,), count) for code, count in self._retries.items()])
        yield Family.of(names.BATCH_RECORDS, self._batch_records.state())
        yield Family.of(names.BATCH_BYTES, self._batch_bytes.state())
        yield Family.of(names.DELIVERY_SECONDS, self._seconds.state())
