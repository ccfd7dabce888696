"""The state of producers and transactions after a truncation: had again by a worker, from a snapshot and headers.

A truncation takes batches back, a `ReplayedState` cannot. So the live state is *stale* from then on: it says nothing
about the log, and nobody may be judged by it. A `ProducerReplay` reads a state of its own up to where the log ended
when it was made; the log goes on meanwhile, and the next replay goes on from there, until only a few headers that are
in memory are left. Those are replayed at once, and the live state becomes that one.

Another truncation in between makes the replay that is under way worthless; another begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partitions.files.damage import LogDamaged
from partitions.producers.control_batches import checked_control_of
from partitions.producers.snapshots import ReplayedState, newest_fitting
from raftlog.errors import CorruptBatch
from raftlog.model import Offset

from .segments import HeaderSource, LogSegments

CATCH_UP_MAX = 1024
"""Headers that the owner's thread replays at most: a millisecond or two."""


@dataclass(frozen=True, slots=True, eq=False)
class ProducerReplay:
    """Work for a worker; of the log it has names, numbers and copies."""

    source: HeaderSource
    state: ReplayedState
    """Its own until it is done."""
    begin: Offset | None
    """The state is that of the batches below; None: it is to be begun, with a snapshot if there is one."""
    snapshots: bool
    """Those on disk may be of this log."""
    generation: int

    @property
    def end_offset(self) -> Offset:
        """Where the state is when it is done."""
        return self.source.end_offset

    def run(self) -> None:
        """Blocks. Raises `LogDamaged`, also where a segment is gone (perhaps because its batches are), and
        `DiskFailed`."""
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
            # A later version of this program wrote it. All of it is in the batches, too.
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
    """The state that a log's owner keeps beside it, and the replay that is under way.

    Invariant: no replay runs unless the state is stale.
    """

    def __init__(self, state: ReplayedState | None, segments: LogSegments) -> None:
        self._state = state
        self._segments = segments
        self.stale = state is not None
        """It says nothing about the log until a replay is done."""
        self._running: ProducerReplay | None = None
        self._reached: ProducerReplay | None = None
        """Done, but the log had gone on too far."""

    @property
    def none_are_kept(self) -> bool:
        """The log's owner keeps no state beside it."""
        return self._state is None

    @property
    def snapshot(self) -> Callable[[], bytes] | None:
        """What gives the state at the log's end; None where nothing can."""
        return None if self._state is None or self.stale else self._state.snapshot

    def batches_went(self) -> None:
        self.stale = self._state is not None
        self._running = self._reached = None

    def emptied(self, start_offset: Offset) -> None:
        """The log was, and goes on here: what there is to know is known."""
        self.batches_went()
        self.stale = False
        if self._state is not None:
            self._state.restore(None)
            if start_offset > 0:
                self._state.lacks_past()

    def next_replay(self, generation: int, *, snapshots: bool) -> ProducerReplay | None:
        """See `PartitionLog.producer_replay`. `snapshots`: those on disk may be of this log."""
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
        """The replay is done or, where it is not good, failed: the next one begins anew."""
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
