"""Counts of what a consumer fetched. Plain numbers, changed once for each answer about a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from raftlog.metrics import client_catalogue as names
from raftlog.metrics.histogram import SIZES, Histogram
from raftlog.metrics.measure import Family


class ReadCounts:
    """The counts of one consumer, over all topics that it reads. They only rise."""

    def __init__(self) -> None:
        self._records: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._batch_records = Histogram(SIZES)

    def fetched(self, topic: str, nbytes: int, records_of_batches: Iterable[int]) -> None:
        """Count an answer about one partition: its bytes, and the number of records of each batch."""
        self._bytes[topic] += nbytes
        for records in records_of_batches:
            self._records[topic] += records
            self._batch_records.observe(records)

    def retried(self, code: str) -> None:
        """Count a fetch that failed and will be made again."""
        self._retries[code] += 1

    def families(self) -> Iterator[Family]:
        """Yield the families."""
        yield Family(names.FETCHED_RECORDS, [((topic,), count) for topic, count in self._records.items()])
        yield Family(names.FETCHED_BYTES, [((topic,), count) for topic, count in self._bytes.items()])
        yield Family(names.FETCH_RETRIES, [((code,), count) for code, count in self._retries.items()])
        yield Family.of(names.FETCHED_BATCH_RECORDS, self._batch_records.state())
