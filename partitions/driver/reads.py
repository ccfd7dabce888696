"""What readers ask of one replica: how far they may see, and the batches.

    log start        last stable offset     high watermark     log end
        |   read_committed   |    read_uncommitted   |   nobody yet |

Nothing here changes the replica: what follows when a read fails is its driver's (`driver.py`).
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
    """See the module. `name` is for people: `orders/3`."""

    def __init__(self, name: str, replica: Replica, log: PartitionLog, producers: ProducerStates) -> None:
        self._name = name
        self._replica = replica
        self._log = log
        self._producers = producers

    # --- How far ---

    def readable_end(self, current_leader_epoch: int = -1) -> Offset:
        """Up to where consumers may read now (S3). Raises what a consumer has to be told."""
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
        """Up to where those who read committed may, of what this high watermark lets others see (S13). Raises
        `RetriableError` while the state of transactions is read again."""
        if self._log.producers.stale:
            raise RetriableError("offset_not_available", f"{self._name} still reads which transactions are open")
        return self._producers.transactions.last_stable_offset(high_watermark)

    @property
    def settled_end(self) -> Offset:
        """Below it nothing can change any more, as far as this replica knows: retention, `delete-records` and
        compaction go no further."""
        if self._log.producers.stale:
            return self._log.log_start_offset
        return self._producers.transactions.last_stable_offset(self._replica.high_watermark)

    @property
    def aborted(self) -> AbortedRanges:
        """Whoever asked for the last stable offset before has all that lie below it, for as long as he holds this."""
        return self._producers.transactions.aborted

    def forget_aborted(self, end: Offset) -> None:
        """Compaction has removed every aborted record below `end`."""
        if not self._log.producers.stale:
            self._producers.transactions.forget_compacted(end)

    # --- Batches ---

    def read(
        self, offset: Offset, end_offset: Offset, max_bytes: int, *, min_one_batch: bool, by: ReadBy = ReadBy.CONSUMER
    ) -> LogSlice:
        """Batches from `offset` on, none reaching beyond `end_offset`. Raises `InvalidRequest` with both bounds where
        the offset lies outside them, `DiskFailed`, `ResourceShortage` (and nothing has changed)."""
        if by is ReadBy.CONSUMER and not self._log.log_start_offset <= offset <= end_offset:
            bounds = f"[{self._log.log_start_offset}, {end_offset}]"
            raise InvalidRequest("offset_out_of_range", f"offset {offset} of {self._name} is outside {bounds}")
        if offset == end_offset:
            return LogSlice(offset, offset)
        return self._log.read(offset, end_offset, max_bytes, min_one_batch=min_one_batch, by=by)
