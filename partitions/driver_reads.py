"""What readers ask of one replica: how far they may see, the batches, and what follows when those cannot be had.

    log start        last stable offset     high watermark     log end
        |   read_committed   |    read_uncommitted   |   nobody yet |

The part of `PartitionDriver` that changes nothing of the replica, but for what a reader can find out: damage.

What is *not* here: long polls (`fetch_waiters.py`), followers (`replication_pushes.py`), how batches are found
(`log.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from raftlog.errors import DiskFailed, DiskHindered, InvalidRequest, RaftlogError, RetriableError, Unforeseen
from raftlog.model import Offset

from .aborted_ranges import AbortedRanges
from .damage import LogDamaged
from .driver_effects import EffectPerformer
from .driver_ports import Waiter
from .log import PartitionLog
from .log_slice import LogSlice, ReadBy
from .producer_replay import ProducerReplay
from .producer_state import ProducerStates
from .replica import Replica


class DriverReads(ABC):
    """See the module; `PartitionDriver` sets all of these."""

    name: str
    log: PartitionLog
    replica: Replica
    _producers: ProducerStates
    _performer: EffectPerformer
    _closed: bool
    _replay_due = False
    """The producers' state is to be read again with the next tick: it could not be read for now."""

    @abstractmethod
    def go_offline(self, reason: str) -> None:
        """See `PartitionDriver`."""

    @abstractmethod
    def throw_away(self, error: BaseException) -> None:
        """See `PartitionDriver`."""

    @abstractmethod
    def _wants_tick(self) -> None:
        """Time is to pass here."""

    @abstractmethod
    def _looks_again(self) -> None:
        """The state of transactions is there again."""

    # --- How far ---

    def readable_end(self, current_leader_epoch: int = -1) -> Offset:
        """Up to where consumers may read now (S3). Raises what a consumer has to be told."""
        leader = self.replica.leader
        if leader is None:
            raise self.replica.not_leading()
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
        if self.log.producers.stale:
            raise RetriableError("offset_not_available", f"{self.name} still reads which transactions are open")
        return self._producers.transactions.last_stable_offset(high_watermark)

    @property
    def settled_end(self) -> Offset:
        """Below it nothing can change any more, as far as this replica knows: retention, `delete-records` and
        compaction go no further."""
        if self.log.producers.stale:
            return self.log.log_start_offset
        return self._producers.transactions.last_stable_offset(self.replica.high_watermark)

    @property
    def aborted(self) -> AbortedRanges:
        """Whoever asked for the last stable offset before has all that lie below it, for as long as he holds this."""
        return self._producers.transactions.aborted

    def forget_aborted(self, end: Offset) -> None:
        """Compaction has removed every aborted record below `end`."""
        if not self.log.producers.stale:
            self._producers.transactions.forget_compacted(end)

    # --- Batches ---

    def read(
        self, offset: Offset, end_offset: Offset, max_bytes: int, *, min_one_batch: bool, by: ReadBy = ReadBy.CONSUMER
    ) -> LogSlice:
        """Batches from `offset` on, none reaching beyond `end_offset`. Raises `InvalidRequest` with both bounds where
        the offset lies outside them, `DiskFailed` (and the replica is offline, or is to be repaired),
        `ResourceShortage` (and nothing has changed)."""
        if by is ReadBy.CONSUMER and not self.log.log_start_offset <= offset <= end_offset:
            bounds = f"[{self.log.log_start_offset}, {end_offset}]"
            raise InvalidRequest("offset_out_of_range", f"offset {offset} of {self.name} is outside {bounds}")
        if offset == end_offset:
            return LogSlice(offset, offset)
        try:
            return self.log.read(offset, end_offset, max_bytes, min_one_batch=min_one_batch, by=by)
        except Unforeseen as error:
            self.throw_away(error)  # A job's, of which this read is the first to hear.
            raise self.replica.not_leading() from None
        except DiskFailed as error:
            if self.log.failed is not None:
                self.go_offline(str(error))
            raise

    def on_load_failed(self, error: BaseException) -> RaftlogError:
        """A worker could not load what a read found cold; returns what the reader is to be told."""
        retriable = isinstance(error, RetriableError) and not isinstance(error, DiskFailed)
        if self._closed or retriable or isinstance(error, MemoryError):
            return RetriableError("offset_not_available", f"{self.name}: {error}")
        if not isinstance(error, RaftlogError):
            self.throw_away(error)
            return self.replica.not_leading()
        if not isinstance(error, LogDamaged):
            self.go_offline(f"{type(error).__name__}: {error}")
            return self.replica.not_leading()
        self.log.damage_found(error)
        if self.log.failed is not None:
            self.go_offline(str(self.log.failed))
        return RetriableError("replica_not_available", f"{self.name} could not be read: {error}")

    def on_producers_replayed(self, replay: ProducerReplay, error: BaseException | None) -> None:
        """A worker has read the producers' state again, or could not."""
        if self._closed or self.replica.offline:
            return
        if isinstance(error, LogDamaged):
            self.log.damage_found(error, fatal=True)
        if error is not None:
            self.on_load_failed(error)
        self.log.producers.replayed(replay, good=error is None)
        self._producers.cut(self.log.log_start_offset)
        if isinstance(error, DiskHindered | MemoryError):
            self._replay_due = True  # Not at once: a shortage lasts.
            self._wants_tick()
        elif not self.replica.offline:
            self._replay_again()
            if self.log.needs_job:
                self._performer.write()  # A start that moved meanwhile waits for a snapshot of this state.

    def _replay_again(self) -> None:
        self._replay_due = False
        self._performer.replay_producers()
        self._looks_again()

    # --- Waiting ---

    def wait_readable(self, waiter: Waiter) -> None:
        """Tell this long poll, once, when consumers may read more or may not read here at all."""
        self._performer.waiters[waiter] = None

    def stop_waiting(self, waiter: Waiter) -> None:
        self._performer.waiters.pop(waiter, None)
