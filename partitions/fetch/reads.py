"""The answer of one partition to a fetch: batches or an error, and the marks beside.

The visible end is read first, the last stable offset before the aborted ranges, so that the ranges are complete below
it (S13). A worker loads data that is not in memory before it is sent (`cold_loads.py`); the loop never waits for the
disk.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from partitions.driver.driver import PartitionDriver
from partitions.log.slice import LogSlice
from partitions.producers.aborted_ranges import AbortedRanges
from raftlog.config import MAX_BATCH_BYTES
from raftlog.errors import NotLeader, RaftlogError
from raftlog.model import Offset, TopicId, TopicPartition
from raftlog.wire import AbortedRange, FetchedPartition, FetchedSlot, FetchPartition, SlotToFetch

READS_A_TURN = 128
"""Bound on the reads of one turn of the loop, some tens of microseconds each."""
BATCHES_A_READ = 16
"""The batches of a read that count as one unit of work: checking their headers costs as much as the rest of a read."""

Asked: TypeAlias = FetchPartition | SlotToFetch


class Replicas(Protocol):
    """The partitions that a fetch can find."""

    def driver(self, topic_partition: TopicPartition) -> PartitionDriver | None: ...

    def missing(self, topic_partition: TopicPartition) -> RaftlogError:
        """Return the error if there is no driver here."""
        ...


class PartitionRead(msgspec.Struct):
    """The read of one partition of a fetch."""

    asked: Asked
    driver: PartitionDriver | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    ranges: AbortedRanges | None = None
    """All aborted ranges below the last stable offset, for `read_committed`."""
    piece: LogSlice | None = None
    most_bytes: int = 0
    """The most that a read may bring, in bytes."""
    error: RaftlogError | None = None

    @property
    def log_start_offset(self) -> int:
        """-1 if nothing of the log may be exposed."""
        return self.driver.log.log_start_offset if self.driver and self.high_watermark >= 0 else -1

    @property
    def cold(self) -> bool:
        """Whether a worker has to load it."""
        return self.piece is not None and self.piece.cold

    @property
    def work(self) -> int:
        """The work of this read, in the units of `READS_A_TURN`."""
        return 1 + (self.piece.batch_count // BATCHES_A_READ if self.piece else 0)

    def answer(self) -> FetchedPartition:
        """Return the answer in the form of `fetched.1`."""
        asked, driver, error = self.asked, self.driver, self.error
        return FetchedPartition(
            asked.topic_id,
            asked.partition,
            error=error.code if error else "",
            detail=error.detail if error else "",
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log_start_offset,
            leader_epoch=driver.leader_epoch if driver and self.high_watermark >= 0 else -1,
            length=self.piece.length if self.piece else 0,
            leader=error.leader if isinstance(error, NotLeader) else -1,
            aborted=self._aborted(),
        )

    def slot_answer(self, slot: int) -> FetchedSlot:
        """Return the answer in the form of `session_fetched.1`."""
        told = self.answer()
        return FetchedSlot(
            slot,
            told.error,
            told.detail,
            told.high_watermark,
            told.last_stable_offset,
            told.log_start_offset,
            told.leader_epoch,
            told.length,
            told.leader,
            told.aborted,
        )

    def release(self) -> None:
        """Release what was read, unsent."""
        if self.piece is not None:
            self.piece.release()

    def _aborted(self) -> list[AbortedRange]:
        """Return the aborted ranges that overlap the batches."""
        if self.ranges is None or self.piece is None or not self.piece.length:
            return []
        return self.ranges.overlapping(self.piece.first_offset, self.piece.next_offset)


def look(replicas: Replicas, asked: Asked, *, committed: bool) -> tuple[PartitionRead, Offset]:
    """Return the visible end of a partition (S3, S13), without reading batches.

    An error is set in the `PartitionRead`; the offset is valid if there is none.
    """
    tp = TopicPartition(TopicId(asked.topic_id), asked.partition)
    read = PartitionRead(asked, replicas.driver(tp))
    driver, end_offset = read.driver, Offset(0)
    try:
        if driver is None:
            raise replicas.missing(tp)
        read.high_watermark = end_offset = driver.reads.readable_end(asked.current_leader_epoch)
        if committed or not driver.log.producers.stale:
            read.last_stable_offset = driver.reads.last_stable_offset(end_offset)
        if committed and asked.offset <= end_offset:
            read.ranges = driver.reads.aborted
            # A reader beyond the last stable offset waits there.
            end_offset = Offset(max(read.last_stable_offset, asked.offset))
    except RaftlogError as error:
        read.error = error
    except Exception as error:  # noqa: BLE001  judged as one that a worker met
        read.error = _unforeseen(driver, error)
    return read, end_offset


def _unforeseen(driver: PartitionDriver | None, error: Exception) -> RaftlogError:
    """Return the reader's error for an unforeseen one of this replica; the others of the fetch are still answered."""
    if driver is None:
        raise error
    return driver.on_load_failed(error)


def read_partition(replicas: Replicas, asked: Asked, room: int, *, first: bool, committed: bool) -> PartitionRead:
    """Read batches from the requested offset on, at most `room` bytes; one at least if it is the `first`."""
    read, end_offset = look(replicas, asked, committed=committed)
    if read.error is None and read.driver is not None:
        room = max(0, min(asked.max_bytes, room))
        read.most_bytes = max(room, MAX_BATCH_BYTES) if first else room
        try:
            read.piece = read.driver.read(Offset(asked.offset), end_offset, room, min_one_batch=first)
        except RaftlogError as error:
            read.error = error
        except Exception as error:  # noqa: BLE001  judged as one that a worker met
            read.error = _unforeseen(read.driver, error)
    return read
