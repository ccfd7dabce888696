"""What makes a replica's log shorter: retention, `delete-records` and what followers say of their start, compaction.

What is *not* here: how far it may move (`retention.py`, `leader_deletions.py`), the disk (`log.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftlog.config import MAX_PRODUCE_TIMEOUT_MS
from raftlog.errors import RaftlogError, RetriableError
from raftlog.model import BrokerId, Incarnation, LeaderEpoch, Offset

from .compaction_run import CleanedSegment, CompactionRun
from .driver_effects import EffectPerformer
from .driver_requests import DeleteDone
from .effects import AdvanceLogStart, Effect
from .log import PartitionLog
from .replica import Replica

if TYPE_CHECKING:
    from .driver import PartitionDriver

Run = Callable[[Callable[[], list[Effect]]], None]


class LogStart:
    """A part of one driver, which gives it `run`: one event with its effects."""

    def __init__(
        self,
        driver: PartitionDriver,
        replica: Replica,
        performer: EffectPerformer,
        run: Run,
        now: Callable[[], float],
        wants_tick: Callable[[PartitionDriver], None],
    ) -> None:
        self._driver = driver
        self._log: PartitionLog = driver.log
        self._replica = replica
        self._performer = performer
        self._run = run
        self._now = now
        self._wants_tick = wants_tick

    def retain(self, now_ms: int | None) -> None:
        """Move the log's start as the topic's retention asks. Leaders only: followers hear of it from them."""
        if self._replica.leader is not None:
            self.advance(self._log.retention(now_ms, self._driver.settled_end))

    def advance(self, offset: Offset) -> None:
        """Records below `offset`, at most the last stable one, are gone for readers."""
        offset = min(offset, self._driver.settled_end)
        if self._replica.leader is not None and offset > self._log.log_start_offset:
            self._run(lambda: [AdvanceLogStart(offset)])

    def seal_for_compaction(self, now_ms: int) -> None:
        """See `PartitionLog.seal_for_compaction`."""
        if self._log.seal_for_compaction(now_ms):
            self._performer.write()

    def replace_segment(self, cleaned: CleanedSegment) -> bool:
        """See `PartitionLog.replace_segment`."""
        replaced = self._log.replace_segment(cleaned)
        self._performer.write()
        return replaced

    def compacted(self, run: CompactionRun, end: Offset) -> None:
        """See `PartitionLog.compacted`."""
        if not self._driver.closed and self._log.compacted(run, end):
            self._driver.forget_aborted(end)
            self._performer.write()

    def delete_records(self, before: Offset, done: DeleteDone, timeout_ms: int) -> None:
        """Delete the records below `before` (-1: all whose fate is settled). `done` is called exactly once: when
        every replica that may lead next has it on disk, or with what went wrong (whose `applied` tells whether they may
        be gone), at the latest after `timeout_ms`, give or take a tick: then with `request_timed_out`."""
        refusal: RaftlogError | None = None
        if self._replica.leader is None:
            refusal = self._replica.not_leading()
        elif self._log.producers.stale:
            refusal = RetriableError("replica_not_available", f"{self._driver.name} still reads what is open")
        elif self._log.full:
            refusal = self._log.refusal(self._driver.name)
        if refusal is not None:
            done(refusal)
            return
        request = self._performer.requests.add(done, self._now() + min(timeout_ms, MAX_PRODUCE_TIMEOUT_MS) / 1000)
        self._run(lambda: self._replica.delete_records(request, before))
        # What it moved may be known to all disks already.
        self._run(self._replica.on_log_start)
        self._wants_tick(self._driver)

    def on_follower(self, follower: BrokerId, incarnation: Incarnation, epoch: LeaderEpoch, start: Offset) -> None:
        """A follower says where its log begins on its disk."""
        self._run(lambda: self._replica.on_follower_start(follower, incarnation, epoch, start))
