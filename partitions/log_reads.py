"""What readers ask of a partition's log, and what follows when what they find is not what was written.

The part of `PartitionLog` that changes nothing of it, but for the one thing that a reader can find out: damage. The
owner may deal with it (`on_damage`): then the log lives on, and the damaged segment is read with its CRCs only, so that
what is good of it can be had. Otherwise the log has failed, and the damaged segment's indexes are removed, so that the
next recovery reads all of it.

What is *not* here: where the bytes come from (`log_reader.py`), how far a reader may see (`driver.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from raftlog.errors import DiskError, DiskHindered, InvalidRequest, RaftlogError
from raftlog.model import Offset
from raftlog.ports import Disk

from .batch_tail import BatchTail
from .damage import LogDamaged
from .index_files import index_names
from .leader_epochs import LeaderEpochHistory
from .log_pending import PendingWork
from .log_reader import LogReader
from .log_segments import LogSegments
from .log_slice import LogSlice, ReadBy
from .time_search import TimeSearch


class LogReads:
    """See the module; `PartitionLog` sets all of these."""

    path: str
    log_start_offset: Offset
    log_end_offset: Offset
    stable_end_offset: Offset
    epochs: LeaderEpochHistory
    failed: RaftlogError | None
    hindered: DiskHindered | None
    _disk: Disk
    _tail: BatchTail
    _segments: LogSegments
    _reader: LogReader
    _pending: PendingWork
    _generation: int
    _suspect: Offset | None
    _closed: bool
    on_damage: Callable[[LogDamaged], bool] | None = None
    """Told of damage; True: the owner deals with it, and the log goes on."""

    # --- Reads ---

    def read(
        self,
        start_offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        by: ReadBy = ReadBy.CONSUMER,
    ) -> LogSlice:
        """Whole batches from the one that holds `start_offset` on, none reaching beyond `end_offset`, at most
        `max_bytes` (the first apart, with `min_one_batch`). What a follower is given begins at `start_offset`.

        Raises `InvalidRequest("offset_out_of_range")` below the start or beyond the end of the log, and `DiskFailed`
        where the disk fails or what it gives is damaged (`LogDamaged`); the log is then `failed`, unless its owner
        deals with the damage. `ResourceShortage` where the file cannot be opened for now: the log is as it was.
        """
        self._refuse_if_failed()
        first = self._segments.all[0].base_offset if by is not ReadBy.CONSUMER else self.log_start_offset
        if not first <= start_offset <= self.log_end_offset:
            raise InvalidRequest(
                "offset_out_of_range", f"offset {start_offset} is not in {first} to {self.log_end_offset}"
            )
        end = min(end_offset, self.log_end_offset)
        try:
            return self._reader.read(
                start_offset,
                end,
                self.log_end_offset,
                max_bytes,
                min_one=min_one_batch,
                checked=by is ReadBy.FOLLOWER_AGAIN,
                copying=by is not ReadBy.CONSUMER,
                generation=self._generation,
            )
        except LogDamaged as error:
            self.damage_found(error)
            raise
        except DiskHindered:
            raise  # It says nothing of the log.
        except RaftlogError as error:
            raise self._fail(error) from None

    def damage_found(self, error: LogDamaged, *, fatal: bool = False) -> None:
        """A worker's read says that the log is not what was written. The log fails where nobody deals with that, or
        nobody can go on without what was to be read (`fatal`). Where batches went since nothing happens: the reader is
        to ask again."""
        if error.generation != self._generation:
            return
        self._segments.holding(max(error.base_offset, self._segments.all[0].base_offset)).suspect = True
        dealt_with = self.on_damage is not None and self.on_damage(error)
        if dealt_with and not fatal:
            return
        self._fail(error)
        if not dealt_with:
            self._suspect = error.base_offset
            if self._pending.outstanding is None:
                self._distrust()

    @property
    def is_damaged(self) -> bool:
        """Damage was found in what the log still has."""
        return isinstance(self.failed, LogDamaged) or any(segment.suspect for segment in self._segments.all)

    def timestamp_search(self, timestamp_ms: int, end_offset: Offset) -> TimeSearch:
        """Work for a worker (`run` touches only files and copies): (offset, timestamp) of the first record below
        `end_offset` whose timestamp is at least this."""
        self._refuse_if_failed()
        end = min(end_offset, self.log_end_offset)
        return self._reader.time_search(timestamp_ms, self.log_start_offset, end, self.log_end_offset, self._generation)

    # --- Scrubbing ---

    @property
    def segments(self) -> LogSegments:
        """To be looked at only: the log changes them."""
        return self._segments

    @property
    def settled_end_offset(self) -> Offset:
        """The batches below are in files and will stay as they are, but for a truncation and compaction."""
        return min(self.stable_end_offset, self._pending.written_offset)

    def damage_in(self, base_offset: Offset, detail: str) -> LogDamaged:
        """For `damage_found`: damage in the segment that begins here, which the log still has."""
        return LogDamaged(detail, base_offset, self._generation)

    def rewrite_small_files(self) -> None:
        """Leader epochs and checkpoint are damaged on disk: the next job writes them again."""
        self._pending.epochs_changed = self._pending.rewrite_checkpoint = True

    # --- Parts ---

    def _refuse_if_failed(self) -> None:
        if self.failed is not None:
            raise self.failed
        assert not self._closed, self.path

    def _fail(self, error: RaftlogError) -> RaftlogError:
        if self.failed is None:
            self.failed = error
        return error

    def _distrust(self) -> None:
        """Without its index the next recovery reads all of the segment, and finds what was found here. A disk that
        refuses even that has failed the log already."""
        if self._suspect is not None:
            with contextlib.suppress(DiskError):
                for name in index_names(self._suspect):
                    self._disk.remove(f"{self.path}/{name}")
            self._suspect = None
