"""Reads of one replica: the visible end, and the batches.

    log start        last stable offset     high watermark     log end
        |   read_committed   |    read_uncommitted   |  hidden      |

No method changes the replica; its driver handles failed reads (`driver.py`).
"""

from __future__ import annotations

from partitions.log.log import PartitionLog
from partitions.log.slice import LogSlice, ReadBy
from partitions.producers.aborted_ranges import AbortedRanges
from partitions.producers.state import ProducerStates
from partitions.replica.replica import Replica
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import Offset


class ReplicaReads:
    """The reads of one replica. `name` is for people: `orders/3`."""

    def __init__(self, name: str, replica: Replica, log: PartitionLog, producers: ProducerStates) -> None:
        self._name = name
        self._replica = replica
        self._log = log
        self._producers = producers

    # --- The visible end ---

    def readable_end(self, current_leader_epoch: int = -1) -> Offset:
        """Return the end of what consumers may read (S3). Raises the consumer's error if they may read nothing."""
        leader = self._replica.leader
        if leader is None:
            raise self._replica.not_leading()
        if current_leader_epoch >= 0 and current_leader_epoch != leader.leader_epoch:
            newer = current_leader_epoch > leader.leader_epoch
            code = "unknown_leader_epoch" if newer else "fenced_leader_epoch"
            raise RetriableError(code, f"leader epoch is {leader.leader_epoch}, not {current_leader_epoch}")
        end_offset = leader.exposed_high_watermark
        if end_offset is None:
            raise RetriableError("offset_not_available", "a new leader has not committed its predecessor's log yet")
        return end_offset

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the end of what `read_committed` may read below this high watermark (S13).

        Raises `RetriableError` while the state of transactions is being replayed.
        """
        if self._log.producers.stale:
            raise RetriableError("offset_not_available", f"{self._name} is rebuilding its transaction state: retry")
        return self._producers.transactions.last_stable_offset(high_watermark)

    @property
    def settled_end(self) -> Offset:
        """The offset below which nothing can change any more, as far as this replica knows.

        Retention, `delete-records` and compaction stop there.
        """
        if self._log.producers.stale:
            return self._log.log_start_offset
        return self._producers.transactions.last_stable_offset(self._replica.high_watermark)

    @property
    def aborted(self) -> AbortedRanges:
        """A snapshot: complete for every offset below a last stable offset read earlier."""
        return self._producers.transactions.aborted

    def forget_aborted(self, end: Offset) -> None:
        """Drop the ranges below `end`: compaction has removed every aborted record there."""
        if not self._log.producers.stale:
            self._producers.transactions.forget_compacted(end)

    # --- Batches ---

    def read(
        self, offset: Offset, end_offset: Offset, max_bytes: int, *, min_one_batch: bool, by: ReadBy = ReadBy.CONSUMER
    ) -> LogSlice:
        """Return batches from `offset` on, none reaching beyond `end_offset`.

        Raises `InvalidRequest` with both bounds if the offset lies outside them, `DiskFailed`, and `ResourceShortage`,
        after which nothing has changed.
        """
        if by is ReadBy.CONSUMER and not self._log.log_start_offset <= offset <= end_offset:
            bounds = f"[{self._log.log_start_offset}, {end_offset}]"
            raise InvalidRequest("offset_out_of_range", f"offset {offset} of {self._name} is outside {bounds}")
        if offset == end_offset:
            return LogSlice(offset, offset)
        return self._log.read(offset, end_offset, max_bytes, min_one_batch=min_one_batch, by=by)
