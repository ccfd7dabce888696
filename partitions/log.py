"""One partition's log: append, read, truncate, and jobs that make it durable.

A `PartitionLog` belongs to one thread. What it is told (append, truncate, move the start) is true of it at once, in
memory; what the disk must learn of it waits for the next job. `take_job()` collects everything that is due, the job's
`run()` does it on a worker thread and touches nothing but files, and `job_done()` brings the outcome back. At most one
job is outstanding, so the disk always follows the same path as the memory did, some steps behind.

* `log_end_offset`: the next offset to write. Batches up to here can be read.
* `stable_end_offset`: everything below was fsynced (written, where the topic has `flush=os`) and still stands. A job's
  result holds up to the smallest of the log end when it was taken and of every truncation since.

After a failed write or fsync the log is `failed` for ever. A full disk is milder: see `full`.

What is *not* here: who may append (`leader.py`, `follower.py`), the high watermark, threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raftlog.config import TopicConfig
from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError
from raftlog.model import NO_EPOCH, LeaderEpoch, Offset
from raftlog.ports import Buffer, Disk
from raftlog.record_batch import BatchHeader

from .leader_epochs import LeaderEpochHistory
from .log_slice import LogSlice


class ReplayedState(Protocol):
    """State that a log's batches determine (idempotent producers): storage keeps its snapshots and replays headers.

    Storage calls `restore` and then `replay` for every batch after the snapshot, in `PartitionLog.open` and again after
    every truncation. Between those the owner itself tells its state about each batch *before* it appends it, so that
    `snapshot()`, which storage asks for when it takes a job, is the state at `log_end_offset`.
    """

    def restore(self, snapshot: bytes | None) -> None:
        """Forget everything, then begin with this snapshot (None: begin empty)."""
        ...

    def replay(self, header: BatchHeader) -> None:
        """The next batch of the log."""
        ...

    def snapshot(self) -> bytes:
        """The state as bytes that `restore` takes; at most some megabytes."""
        ...


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening a log found and did."""

    clean: bool
    """The last stop was clean, and nothing was found wrong."""
    cut_or_quarantined: bool
    """Something that may have been acknowledged was removed, set aside or cannot be vouched for: S9. Also true for a
    `flush=os` topic after an unclean stop."""
    last_epoch: LeaderEpoch
    log_start_offset: Offset
    stable_end_offset: Offset
    """The log's end: what was found is fsynced by now."""
    notes: tuple[str, ...] = ()
    """One line for each row of the decision table that was not «keep»."""


class LogJob(Protocol):
    """What the disk has to be told now."""

    def run(self) -> None:
        """On a worker thread: blocks, touches only files. Raises `DiskFailed` or `DiskFull`."""
        ...


class PartitionLog:
    """One partition's log. See the module for the rules.

    Invariant: `log_start_offset <= log_end_offset` and `stable_end_offset <= log_end_offset`.
    Invariant: offsets are dense: each batch begins where the one before it ends.
    """

    def __init__(self, config: TopicConfig, epochs: LeaderEpochHistory, producers: ReplayedState | None) -> None:
        self.config = config
        self.epochs = epochs
        self.producers = producers
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.stable_end_offset = Offset(0)
        self.failed: RaftlogError | None = None
        """Set once, by a failed write or fsync or by damage found while reading: the replica is offline."""
        self.full = False
        """The last job met a full disk. What was appended stays readable and unstable, `append` raises `DiskFull`, and
        `take_job` gives the same work again (the `LogWriter` retries every second), until it succeeds."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        config: TopicConfig,
        *,
        clean_shutdown: bool,
        producers: ReplayedState | None = None,
    ) -> tuple[PartitionLog, Recovery]:
        """Open the log in folder `path`, or begin one where there is no such folder; recover first. Blocks.

        What was read is fsynced before this returns. Raises `DiskFailed` or `DiskFull`.
        """
        log = cls(config, LeaderEpochHistory(), producers)
        if producers is not None:
            producers.restore(None)
        return log, Recovery(True, False, NO_EPOCH, Offset(0), Offset(0))

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, staged ones included."""
        return 0

    @property
    def needs_job(self) -> bool:
        """Whether `take_job` would give one, were none outstanding."""
        return False

    def append(self, header: BatchHeader, buffers: Sequence[Buffer]) -> None:
        """Add one stamped and checked batch, whose bytes must not change from now on. Readable at once, durable when
        `stable_end_offset` has passed it.

        Raises `InvariantViolation` where it does not continue the log (base offset, leader epoch), `DiskFull`, or what
        made the log fail. Nothing was changed then.
        """
        if header.base_offset != self.log_end_offset:
            raise InvariantViolation(f"batch begins at {header.base_offset}, the log ends at {self.log_end_offset}")
        raise NotImplementedError

    def truncate_to(self, end_offset: Offset) -> None:
        """Drop every batch that reaches beyond `end_offset`. `log_end_offset` is then at most that: less where it lies
        inside a batch, which goes as a whole. Does nothing at or above the log's end.

        Raises `InvariantViolation` below `log_start_offset` (see `truncate_fully_and_start_at`).
        """
        raise NotImplementedError

    def truncate_fully_and_start_at(self, offset: Offset) -> None:
        """Drop everything and go on, empty, at `offset`: a follower whose log lies wholly below its leader's start."""
        raise NotImplementedError

    def take_job(self) -> LogJob | None:
        """What must be written, fsynced, rolled, cut and removed now; None where nothing is due, or a job is
        outstanding, or the log failed. The caller runs it elsewhere and then calls `job_done`."""
        raise NotImplementedError

    def job_done(self, job: LogJob, error: BaseException | None) -> None:
        """The outcome of the outstanding job, on the owner's thread. Moves `stable_end_offset`, or sets `full` or
        `failed`. Raises nothing."""
        raise NotImplementedError

    def read(
        self, start_offset: Offset, end_offset: Offset, max_bytes: int, *, min_one_batch: bool = True
    ) -> LogSlice:
        """Whole batches from the one that holds `start_offset` on, none reaching beyond `end_offset`, at most
        `max_bytes` (the first apart, with `min_one_batch`).

        Raises `InvalidRequest("offset_out_of_range")` below the start or beyond the end of the log, and `DiskFailed`
        where the disk fails or what it gives is damaged; the log is then `failed`.
        """
        raise InvalidRequest("offset_out_of_range", f"{start_offset}")

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: Offset) -> tuple[Offset, int] | None:
        """(offset, timestamp) of the first record below `end_offset` whose timestamp is at least this. Blocks: for a
        worker use `timestamp_search`."""
        raise NotImplementedError

    def epoch_end_offset(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch of this log that is at most `epoch`, and where it ends (KIP-101, KIP-320)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def advance_log_start(self, offset: Offset) -> None:
        """Records below `offset` are no longer readable; segments wholly below go with the next jobs. Never back."""
        raise NotImplementedError

    def retention(self, now_ms: int | None, end_bound: Offset) -> Offset:
        """Where `retention.ms` and `retention.bytes` would move the start: at most `end_bound` (the high watermark), a
        bounded number of segments further. None for the time: the clock is not to be trusted, only size counts.
        The caller passes it to `advance_log_start`."""
        return self.log_start_offset

    def close(self, *, clean: bool) -> None:
        """Let go of all files. Clean: everything is written, fsynced and checkpointed first, with no job outstanding
        (blocks, raises `DiskFailed` or `DiskFull`)."""
        raise NotImplementedError
