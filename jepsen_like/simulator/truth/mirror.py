"""The last known state of one replica, compared with the committed log.

A `Mirror` has a replica's log batch by batch, read from its real bytes; each batch is read once in a life. Truncations,
moved starts and emptied logs are followed, so that a comparison costs only what changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from jepsen_like.simulator.world.violation import Violation
from partitions.driver.driver import PartitionDriver
from partitions.replica.leader import Leader
from raftlog.errors import CorruptBatch

from .committed_log import Batch, CommittedLog, batches_of, sound_batch
from .durable import DurableMark


class Shape(NamedTuple):
    """A replica in numbers."""

    start_offset: int
    end_offset: int
    stable_end_offset: int
    high_watermark: int
    partition_epoch: int
    """The epoch of its record; -1 if it has none."""
    leader: Leader | None
    """Set while it leads."""

    def covers_other_than(self, before: Shape) -> bool:
        """Return whether it has other batches."""
        return self.end_offset != before.end_offset or self.start_offset != before.start_offset

    def promises_other_than(self, before: Shape) -> bool:
        """Return whether it claims other batches to be on disk."""
        return self.stable_end_offset != before.stable_end_offset or self.start_offset != before.start_offset

    def may_lack(self, before: Shape) -> bool:
        """Return whether it may have less than before, or other duties; additional batches on its disk do no harm."""
        return (
            self.stable_end_offset < before.stable_end_offset
            or self.start_offset != before.start_offset
            or self.partition_epoch != before.partition_epoch
            or self.leader is not before.leader
        )


class LeaderMark(NamedTuple):
    """The last known progress of a leadership."""

    leader: Leader
    high_watermark: int
    partition_epoch: int


@dataclass(slots=True)
class Mirror:
    """One replica's log as it was last seen.

    Invariant: `batches` are consecutive; the first `verified` of them equal the committed ones.
    """

    driver: PartitionDriver | None = None
    shape: Shape | None = None
    leader_mark: LeaderMark | None = None
    start_offset: int = 0
    batches: list[Batch] = field(default_factory=list)
    verified: int = 0
    durable: DurableMark = field(default_factory=DurableMark)
    """How far its disk was checked."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.start_offset

    @property
    def verified_end(self) -> int:
        return self.batches[self.verified - 1].end_offset if self.verified else self.start_offset

    def refresh(self, driver: PartitionDriver, seen: Callable[[Batch], None], *, compacts: bool) -> None:
        """Follow the log to its present state. `seen` is called with each new batch."""
        log = driver.log
        start, end = log.log_start_offset, log.log_end_offset
        if self.driver is not driver or start > self.end_offset or start < self.start_offset:
            self.driver = driver
            self.batches, self.verified, self.start_offset = [], 0, start
        while self.batches and self.batches[-1].end_offset > end:
            self.batches.pop()
        self.verified = min(self.verified, len(self.batches))
        if start > self.start_offset:
            gone = next((i for i, batch in enumerate(self.batches) if batch.end_offset > start), len(self.batches))
            del self.batches[:gone]
            self.verified = max(0, self.verified - gone)
            self.start_offset = start
        for view in batches_of(driver, self.end_offset, end):
            try:
                batch = sound_batch(bytes(view), compacts)
            except CorruptBatch as error:
                raise Violation(f"S9: {driver} has a damaged batch in service: {error.detail}") from None
            before = self.batches[-1] if self.batches else None
            if before is not None and (
                batch.base_offset != before.end_offset or batch.leader_epoch < before.leader_epoch
            ):
                raise Violation(f"S2: {batch} follows {before} in {driver}")
            self.batches.append(batch)
            seen(batch)

    def compare_anew_from(self, end_offset: int) -> None:
        """Forget the comparison of batches that reach beyond `end_offset`: the truth has no such batches any more."""
        while self.verified and self.batches[self.verified - 1].end_offset > end_offset:
            self.verified -= 1

    def compare(self, truth: CommittedLog, end_offset: int) -> str:
        """Compare with the truth up to an offset. Returns what is wrong, or an empty text."""
        while self.verified < len(self.batches) and self.batches[self.verified].end_offset <= end_offset:
            mine = self.batches[self.verified]
            committed = truth.by_base.get(mine.base_offset)
            if committed != mine and not mine.hole:
                return f"has {mine}, committed is {committed}"
            self.verified += 1
        # A hole may reach beyond: compaction made it when more was committed than this replica knows now.
        straddled = self.verified < len(self.batches) and self.batches[self.verified].hole
        if self.verified_end < end_offset and not straddled:
            return f"lacks [{self.verified_end}, {end_offset})"
        return ""
