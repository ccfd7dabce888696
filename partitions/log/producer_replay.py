"""Restoring the state of producers and transactions after a truncation, on a worker, from a snapshot and headers.

A truncation removes batches, and a `ReplayedState` cannot undo them. So the live state is *stale* from then on: it says
nothing about the log, and no batch may be judged by it. A `ProducerReplay` builds a state of its own up to the log's
end when it was made. The log continues meanwhile, and the next replay continues from there, until only a few headers in
memory are left. Those are replayed at once, and the result becomes the live state.

Another truncation in between invalidates the replay in progress, and a new one begins.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from partitions.files.damage import LogDamaged
from partitions.producers.control_batches import checked_control_of
from partitions.producers.snapshots import ReplayedState, newest_fitting
from raftlog.errors import CorruptBatch
from raftlog.model import Offset

from .segments import HeaderSource, LogSegments

CATCH_UP_MAX = 1024
"""Bound on the headers that the owner's thread replays: a millisecond or two."""


class ProducerReplay(msgspec.Struct, frozen=True, eq=False):
    """A replay for a worker, with names, numbers and copies of the log."""

    source: HeaderSource
    state: ReplayedState
    """Private to the replay until it is done."""
    begin: Offset | None
    """The state covers the batches below; None: it starts from a snapshot, if there is one."""
    snapshots: bool
    """Whether the snapshots on disk may belong to this log."""
    generation: int

    @property
    def end_offset(self) -> Offset:
        """The offset that the state covers when the replay is done."""
        return self.source.end_offset

    def run(self) -> None:
        """Replay the batches. Blocks.

        Raises `LogDamaged`, also if a segment is gone (perhaps because its batches are), and `DiskFailed`.
        """
        offset = self._begun() if self.begin is None else self.begin
        try:
            for header, control in self.source.batches_from(offset):
                self.state.replay(header, control)
                offset = Offset(header.end_offset)
        except CorruptBatch as error:
            raise self._damaged(offset, error.detail) from None
        except FileNotFoundError:
            raise self._damaged(offset, "the segment is gone") from None

    def _begun(self) -> Offset:
        source = self.source
        start = source.start_offset
        snapshot = None
        if self.snapshots:
            snapshot = newest_fitting(source.disk, source.path, source.epochs, start, source.end_offset)
        try:
            self.state.restore(None if snapshot is None else snapshot.state)
        except ValueError:
            # A later version of this program wrote the snapshot. All of its content is in the batches, too.
            self.state.restore(None)
            snapshot = None
        begin = Offset(0) if snapshot is None else snapshot.offset
        if begin < start:
            self.state.lacks_past()
        return max(start, begin)

    def _damaged(self, offset: Offset, detail: str) -> LogDamaged:
        detail = f"{self.source.path}: producers at {offset}: {detail}"
        return LogDamaged(detail, self.source.base_holding(offset), self.generation)


class LiveProducers:
    """The producer state that a log's owner keeps, and the replay in progress.

    Invariant: no replay runs unless the state is stale.
    """

    def __init__(self, state: ReplayedState | None, segments: LogSegments) -> None:
        self._state = state
        self._segments = segments
        self.stale = state is not None
        """Whether the state says nothing about the log until a replay is done."""
        self._running: ProducerReplay | None = None
        self._reached: ProducerReplay | None = None
        """A replay that is done, but the log had grown too far meanwhile."""

    @property
    def none_are_kept(self) -> bool:
        """Whether the log's owner keeps no producer state."""
        return self._state is None

    @property
    def snapshot(self) -> Callable[[], bytes] | None:
        """The encoder of the state at the log's end; None if there is no valid state."""
        return None if self._state is None or self.stale else self._state.snapshot

    def batches_went(self) -> None:
        self.stale = self._state is not None
        self._running = self._reached = None

    def emptied(self, start_offset: Offset) -> None:
        """Record that the log was emptied and continues at `start_offset`: its state is known completely."""
        self.batches_went()
        self.stale = False
        if self._state is not None:
            self._state.restore(None)
            if start_offset > 0:
                self._state.lacks_past()

    def next_replay(self, generation: int, *, snapshots: bool) -> ProducerReplay | None:
        """Implement `PartitionLog.producer_replay`. `snapshots`: those on disk may belong to this log."""
        if self._state is None or not self.stale or self._running is not None:
            return None
        reached = self._reached
        self._running = ProducerReplay(
            source=self._segments.header_source(),
            state=self._state.empty() if reached is None else reached.state,
            begin=None if reached is None else reached.end_offset,
            snapshots=snapshots,
            generation=generation,
        )
        return self._running

    def replayed(self, replay: ProducerReplay, *, good: bool = True) -> None:
        """Apply a finished replay; if it failed (not `good`), the next one starts over."""
        if replay is not self._running or self._state is None:
            return
        self._running = self._reached = None
        if not good:
            return
        tail = self._segments.tail
        log_end = self._segments.active.end_offset
        missing = tail.from_offset(replay.end_offset)
        if replay.end_offset < tail.first_offset(log_end) or len(missing) > CATCH_UP_MAX:
            self._reached = replay
            return
        for batch in missing:
            replay.state.replay(batch.header, checked_control_of(batch.header, batch.buffers))
        self._state.become(replay.state)
        self.stale = False
