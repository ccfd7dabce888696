"""The truth of one partition: everything that was ever committed, as observed by the world.

`CommittedLog` grows with every record that any leader ever had below its high watermark or acknowledged. Nothing is
removed, with one exception: records of a topic with `flush=os`, if all replicas that had them lost power (`lose_from`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jepsen_like.simulator.world.network import bytes_of
from jepsen_like.simulator.world.violation import Violation
from partitions.driver.driver import PartitionDriver
from raftlog.model import Offset
from raftlog.ports import Part
from raftlog.records.batch import BatchHeader, RecordBatch, check_crc, split_batches

READ_BYTES = 1 << 20
SOUND_BATCHES = 512
"""Number of cached batches: those that replicas are receiving now."""


class Batch(NamedTuple):
    """The identity of a committed batch."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    crc: int
    """0 if compaction may rewrite the batch."""
    hole: bool = False
    """Whether compaction removed every record of one batch, or of several, so that only the offsets remain."""

    @classmethod
    def of(cls, header: BatchHeader, *, compacts: bool) -> Batch:
        place = header.base_offset, header.end_offset, header.leader_epoch
        return cls(*place, 0, not header.record_count) if compacts else cls(*place, header.crc)


@lru_cache(maxsize=SOUND_BATCHES)
def sound_batch(content: bytes, compacts: bool) -> Batch:
    """Return the identity of a whole batch. Raises `CorruptBatch` if it is damaged.

    The result is cached, since every replica of a partition has the same bytes, in memory and on disk.
    """
    return Batch.of(check_crc(content), compacts=compacts)


@dataclass(slots=True)
class CommittedRecord:
    """One record as it was committed."""

    value: bytes | None
    key: bytes | None
    timestamp_ms: int


class CommittedLog:
    """The committed records of one partition, in order."""

    def __init__(self, *, compacts: bool = False) -> None:
        self.compacts = compacts
        self.batches: list[Batch] = []
        self.by_base: dict[int, Batch] = {}
        self.records: dict[int, CommittedRecord] = {}
        """Offset → record."""
        self.controls: set[int] = set()
        """Offsets of transaction markers, which no reader sees."""
        self.offsets: dict[bytes, int] = {}
        """Value → offset: values are unique, so a second one is a duplicate."""
        self.lost: set[tuple[int, bytes | None]] = set()
        """(offset, value) of records that were committed and lost, as `flush=os` allows."""
        self._overwritten: dict[bytes, int] = {}
        """Key → the end of the log after a loss of a record with this key: compaction may have dropped earlier ones."""
        self._floor = 0
        """The offset at which the log continued after a loss, if it is beyond the remaining batches."""
        self._producers: dict[int, tuple[int, int]] = {}
        """Producer id → (epoch, next sequence)."""

    @property
    def end_offset(self) -> int:
        return max(self._floor, self.batches[-1].end_offset if self.batches else 0)

    def extend(self, view: memoryview) -> None:
        """Append the next committed batch. Raises `Violation` of S1 and S2."""
        batch = RecordBatch(view)
        header = batch.header
        if header.base_offset != self.end_offset:
            raise Violation(f"S2: committed batch at {header.base_offset}, the committed log ends at {self.end_offset}")
        if self.batches and header.leader_epoch < self.batches[-1].leader_epoch:
            raise Violation(f"S2: epoch {header.leader_epoch} is committed after {self.batches[-1]}")
        self._check_sequence(header)
        known = Batch.of(header, compacts=self.compacts)
        self.batches.append(known)
        self.by_base[known.base_offset] = known
        if header.is_control:
            self.controls.add(header.base_offset)
            return
        rows = zip(batch.offsets(), batch.values(), batch.keys(), batch.timestamps_ms(), strict=True)
        for offset, value, key, timestamp in rows:
            if value is not None:
                if value in self.offsets:
                    raise Violation(f"S1: {value!r} is committed at {self.offsets[value]} and again at {offset}")
                self.offsets[value] = offset
            self.records[offset] = CommittedRecord(value, key, timestamp)

    def holds(self, offset: int, value: bytes | None) -> bool:
        """Return whether this was committed at this offset, even if it was lost since, as `flush=os` allows."""
        record = self.records.get(offset)
        return (record is not None and record.value == value) or (offset, value) in self.lost

    def told(self, offset: int) -> str:
        """Return the committed value at an offset, as text."""
        record = self.records.get(offset)
        return "nothing" if record is None else repr(record.value)

    def lose_from(self, end_offset: int, start_offset: int) -> int:
        """Drop everything from here on as lost, as `flush=os` allows, and return the number of records.

        The surviving log begins at `start_offset`, which may lie beyond its last batch: then the deletion is known, but
        not the records after it.
        """
        count, self._floor = 0, start_offset
        self._overwritten = {key: min(end_offset, cut) for key, cut in self._overwritten.items()}
        while self.batches and self.batches[-1].end_offset > end_offset:
            batch = self.batches.pop()
            del self.by_base[batch.base_offset]
            for offset in range(batch.base_offset, batch.end_offset):
                record = self.records.pop(offset, None)
                if record is not None:
                    count += 1
                    self.lost.add((offset, record.value))
                    if record.key is not None:
                        self._overwritten[record.key] = end_offset
                    if record.value is not None:
                        del self.offsets[record.value]
        self._producers.clear()
        return count

    def latest_of_keys(self) -> dict[bytes, int]:
        """Return key → offset of its last record, if compaction must have kept it.

        Compaction need not have kept a record that was overwritten by one that is lost (`docs/guarantees.md`).
        """
        last = {record.key: offset for offset, record in sorted(self.records.items()) if record.key is not None}
        return {key: offset for key, offset in last.items() if offset >= self._overwritten.get(key, 0)}

    def _check_sequence(self, header: BatchHeader) -> None:
        """S1: each producer's records are committed in order, without gaps, and never in an old epoch."""
        if header.producer_id < 0:
            return
        first = (
            header.base_sequence if self.lost else 0
        )  # After a loss, the first sequence of a producer without remaining records is unknown.
        epoch, expected = self._producers.get(header.producer_id, (header.producer_epoch, first))
        if header.producer_epoch > epoch:
            epoch, expected = header.producer_epoch, 0
        if header.producer_epoch < epoch or header.base_sequence != expected:
            raise Violation(
                f"S1: producer {header.producer_id} committed epoch {header.producer_epoch} sequence "
                f"{header.base_sequence}, due is epoch {epoch} sequence {expected}"
            )
        self._producers[header.producer_id] = epoch, expected + header.last_offset_delta + 1


def batches_of(driver: PartitionDriver, start: int, end: int) -> Iterator[memoryview]:
    """Yield whole batches of a replica's log from `start`, none beyond `end`."""
    while start < end:
        found = driver.log.read(Offset(start), Offset(end), READ_BYTES)
        if found.load is not None:
            found = found.load()
        if found.next_offset <= start:
            raise Violation(f"S2: {driver} has a hole at {start}, its log ends at {driver.log.log_end_offset}")
        start = found.next_offset
        yield from split_batches(_joined(found.parts))


def _joined(parts: Sequence[Part]) -> bytes:
    return b"".join(bytes_of(part) for part in parts)
