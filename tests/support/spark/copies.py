"""A topic, a streaming query from it to another one or to files that is restarted repeatedly (`copier.py`), and the
expected content of the target.

Spark's planned and completed micro-batches are files of its checkpoint; the published one is a position of the cluster,
or the last entry in the log of Spark's file sink; and a micro-batch's ranges are in the checkpoint. The records that a
`read_committed` reader must see are therefore known at any moment: those of all micro-batches up to the published one,
each once, and nothing else (S1, S13).
"""

from __future__ import annotations

import abc
import enum
import time
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import ClassVar

import msgspec

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client import ConsumerRecord
from raftlog.sync import Admin, Consumer, Producer
from spark_source.reading.offsets import SourceOffset
from tests.support.clusters.cluster import PATIENCE_S, POLL_S

from .copier import Copier, CopierOptions
from .parquet import ParquetFolder
from .queries import read_committed

PARTITIONS = 2


class Target(enum.StrEnum):
    """The target of the query."""

    TOPIC = "topic"
    PARQUET = "parquet"


class Copies(abc.ABC):
    """The topics, the query, and the checks. Must be closed."""

    target: ClassVar[Target]

    def __init__(self, cluster: LocalCluster, name: str, folder: Path, wheel: Path, **written_to: str) -> None:
        self._cluster = cluster
        self.folder = folder
        self.began = [0] * PARTITIONS
        """The query's starting offsets, by partition."""
        self.produced = [0] * PARTITIONS
        self.checkpoint = folder / "checkpoint"
        self._options = CopierOptions(cluster.bootstrap, f"{name}-in", str(self.checkpoint), str(wheel), **written_to)
        self.admin = Admin(cluster.bootstrap)
        self.admin.create_topic(self._options.source, partitions=PARTITIONS)

    def close(self) -> None:
        self.admin.close()

    # --- Actions ---

    def produce(self, count: int) -> None:
        """Produce this number of records to each partition: an offset's record is its number."""
        with Producer(self._cluster.bootstrap) as producer:
            for partition, first in enumerate(self.produced):
                values = [b"%d" % number for number in range(first, first + count)]
                producer.send_many(self._options.source, values, keys=values, partition=partition)
                self.produced[partition] += count

    def start(self, **changes: object) -> Copier:
        """Start the query. `changes`: other `CopierOptions`."""
        options = CopierOptions(**{**self._options.__dict__, **changes})  # type: ignore[arg-type]
        return Copier(options, self.folder / "log")

    def finish(self, **changes: object) -> None:
        """Start it once more, to its end, in micro-batches as large as possible; then all records are there, once, and
        no transaction is open."""
        copier = self.start(**{"per_trigger": sum(self.produced), **changes})
        try:
            assert copier.finish() == 0, copier.told()
        finally:
            copier.kill()
        self.check_all()

    # --- State ---

    def planned(self) -> int:
        """The last micro-batch that Spark has planned; -1: none."""
        return _last(self.checkpoint / "offsets")

    def planned_ends(self) -> list[int]:
        """The end offsets of that micro-batch, by partition."""
        return self._ends(self.planned())

    def noted(self) -> int:
        """The last micro-batch that Spark has recorded as complete."""
        return _last(self.checkpoint / "commits")

    @abc.abstractmethod
    def published(self) -> int:
        """The last micro-batch that `read_committed` readers see."""

    @abc.abstractmethod
    def left_open(self) -> Set[object]:
        """Written records, or files, of no published micro-batch."""

    # --- Checks ---

    def check_all(self) -> None:
        """Every record produced since the query's start is there once, and no reader is held up."""
        expected, seen = self._expected(self.produced), self._read_all()
        assert seen == expected, _difference(self.published(), expected, seen)

    def check_published(self) -> int:
        """The visible records equal the published micro-batches, as soon as the cluster shows its decisions. Returns
        the position. Raises `AssertionError`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            published, noted = self.published(), self.noted()
            expected = self._expected(self._ends(published))
            seen = self._seen()
            if seen == expected and published == self.published():
                break
            assert time.monotonic() < deadline, _difference(published, expected, seen)
            time.sleep(POLL_S)
        assert noted <= published <= self.planned() and published - noted <= 1, (
            f"planned {self.planned()}, published {published}, noted as done {noted}"
        )
        return published

    @abc.abstractmethod
    def _seen(self) -> Counter[bytes]:
        """The visible published records, now."""

    @abc.abstractmethod
    def _read_all(self) -> Counter[bytes]:
        """The records that a user reads when the query has ended."""

    def _ends(self, batch_id: int) -> list[int]:
        """The ends of the micro-batches up to this one."""
        if batch_id < 0:
            return list(self.began)
        last = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
        ends = SourceOffset.from_json(msgspec.json.decode(last)).ends[self._options.source]
        return [ends[partition] for partition in range(PARTITIONS)]

    def _expected(self, ends: list[int]) -> Counter[bytes]:
        return Counter(b"%d/%d/%d" % (p, n, n) for p, end in enumerate(ends) for n in range(self.began[p], end))


class TopicCopies(Copies):
    target = Target.TOPIC

    def __init__(self, cluster: LocalCluster, name: str, folder: Path, wheel: Path) -> None:
        self.sink = f"{name}-out"
        super().__init__(cluster, name, folder, wheel, topic=self.sink)
        self.admin.create_topic(self.sink, partitions=PARTITIONS)

    def published(self) -> int:
        """The last micro-batch that the cluster has committed."""
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            return -1
        query_id = metadata.read_text().partition('"id":"')[2].partition('"')[0]
        found = self.admin.position(f"spark/{query_id}/sink") if query_id else None
        return -1 if found is None else found

    def left_open(self) -> set[int]:
        """Producer ids of undecided transactions in the second topic."""
        listed = self.admin.list_transactions()
        return {
            one.producer_id
            for one in listed.transactions
            if one.state == "Ongoing" and any(place.topic == self.sink for place in one.partitions)
        }

    def written(self) -> int:
        """The number of offsets in the second topic, visible or not."""
        with Consumer(self._cluster.bootstrap, self.sink, isolation="read_uncommitted", max_wait_ms=50) as consumer:
            deadline = time.monotonic() + PATIENCE_S
            while len(consumer.high_watermarks) < PARTITIONS:
                assert time.monotonic() < deadline, "a partition does not tell where it ends"
                consumer.next_batch(timeout=POLL_S)
            return sum(consumer.high_watermarks.values())

    def _seen(self) -> Counter[bytes]:
        """The records that a `read_committed` reader sees now: up to the first open transaction."""
        found: Counter[bytes] = Counter()
        with Consumer(self._cluster.bootstrap, self.sink, max_wait_ms=50) as consumer:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                found += _texts(consumer.poll(timeout=POLL_S))
                if len(consumer.end_offsets) == PARTITIONS and not any(consumer.lag.values()):
                    break
        return found

    def _read_all(self) -> Counter[bytes]:
        return _texts(read_committed(self._cluster, self.sink))


class ParquetCopies(Copies):
    target = Target.PARQUET

    def __init__(self, cluster: LocalCluster, name: str, folder: Path, wheel: Path) -> None:
        self._parquet = ParquetFolder(folder / "parquet")
        super().__init__(cluster, name, folder, wheel, parquet=str(self._parquet.folder))

    def published(self) -> int:
        """The last micro-batch in the log of Spark's sink."""
        return self._parquet.last()

    def left_open(self) -> set[str]:
        """Files that the log of Spark's sink does not name: the remains of a killed driver are never removed."""
        return self._parquet.unnamed()

    def _seen(self) -> Counter[bytes]:
        return self._parquet.values()

    def _read_all(self) -> Counter[bytes]:
        read = self._parquet.read_by_spark(Path(self._options.wheel), self.folder / "read.json")
        # Spark uses the log: the remains are in the folder, too.
        assert read.files == set(self._parquet.named())
        return read.values


def _last(folder: Path) -> int:
    """The greatest of the files that have numbers as names."""
    if not folder.exists():
        return -1
    return max((int(file.name) for file in folder.iterdir() if file.name.isdigit()), default=-1)


def _texts(records: list[ConsumerRecord]) -> Counter[bytes]:
    return Counter(record.value or b"" for record in records)


def _difference(published: int, expected: Counter[bytes], seen: Counter[bytes]) -> str:
    missing, surplus = expected - seen, seen - expected
    return (
        f"micro-batch {published} is published: of {expected.total()} records {missing.total()} are not seen "
        f"({sorted(missing)[:5]}), and {surplus.total()} should not be ({sorted(surplus)[:5]})"
    )
