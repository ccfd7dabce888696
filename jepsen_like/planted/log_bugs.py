"""Bugs of a replica's log: missing fsyncs and checksums, forgotten truncations, records that disappear."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from typing import Any

from msgspec.structs import replace

from partitions.compaction import run as compaction_run
from partitions.compaction.plan import Choice
from partitions.driver.driver import PartitionDriver
from partitions.files import durable
from partitions.log.job import LogJob
from partitions.log.pending import PendingWork
from partitions.opening.log_manager import LogManager
from partitions.recovery import scan as recovery_scan
from partitions.recovery.recover import _Recovery
from partitions.replica.effects import AdvanceLogStart
from partitions.upkeep import scrub_check as scrubber_check
from partitions.upkeep.repair import LossAnswer, ReplicaRepairs
from raftlog.ports import Disk
from raftlog.records.batch import parse_header

from .patches import CLUSTER, Patch, Planted, original

_done = original(PendingWork, "done")
_make_durable = original(_Recovery, "_make_durable")
_run = original(LogJob, "run")
_segment_write = original(PendingWork, "_segment_write")
_sync_all = original(durable, "_sync_all")
_take = original(LogManager, "take")


class _FoldersAreForgotten:
    """A disk on which the names of new segments may be lost in a power failure."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def fsync_directory(self, path: str) -> None:
        """Do nothing."""


def _write_without_sync(pending: Any, segment: Any, batches: Any, **how: bool) -> Any:
    write = _segment_write(pending, segment, batches, **how)
    if write is not None:
        write.sync = False
    return write


def _run_without_folder(job: Any) -> None:
    job.disk = _FoldersAreForgotten(job.disk)
    _run(job)


def _done_whatever_went(pending: Any, job: Any, cache: Any, tail: Any) -> Any:
    """Count the whole range of a job as stable, even if it was truncated meanwhile."""
    pending._lowest_truncation = None
    return _done(pending, job, cache, tail)


def _durable_without_fsync(recovery: Any, read: Any, *, names: bool = False) -> Any:
    return _make_durable(recovery, [], names=names)


def _sync_all_but_batches(disk: Disk, waiting: Any) -> Any:
    """Keep the barriers of small files and names, and leave out the one behind the batches."""
    return "" if any(due.files for due in waiting) else _sync_all(disk, waiting)


def _retain_to_the_end(self: Any, now_ms: int | None) -> None:
    if self.replica.leader is not None:
        offset = self.log.retention(now_ms, self.log.log_end_offset)
        if offset > self.log.log_start_offset:
            self._run(lambda: [AdvanceLogStart(offset)])


def _keep_the_older(
    keys: Sequence[bytes | None], offsets: Sequence[int], tombstones: Sequence[bool], latest: Any, **_: Any
) -> Choice:
    """Drop the last record of each key and keep the others."""
    found = latest.latest([key or b"" for key in keys])
    return Choice([last < 0 or lt(offset, last) for offset, last in zip(offsets, found, strict=True)], -1)


def _take_what_is_there(shelf: Any, tp: Any, config: Any) -> Any:
    """Reuse the replica of a deleted topic for the next topic."""
    stale = [other for other in shelf._loaded if other.partition == tp.partition and other != tp]
    if tp not in shelf._loaded and stale:
        shelf._loaded[tp] = replace(shelf._loaded.pop(stale[0]), topic_partition=tp)
    return _take(shelf, tp, config)


def _repair_at_once(repairs: Any, repair: Any) -> None:
    """Cut the damaged part before the quorum knows that this replica lacks it."""
    if repairs._goes_on(repair):
        repairs._answered(repair, LossAnswer.ACCEPTED)


def _read_nothing(check: Any) -> Any:
    """Report every segment as intact."""
    yield from ()


def _set_nothing_aside(shelf: Any, known: Any) -> None:
    """Leave strays in place."""


LOG_BUGS = (
    Planted(
        "log_without_fsync",
        "acknowledged records are only in the page cache",
        "a job fsyncs its writes",
        (Patch(PendingWork, "_segment_write", _write_without_sync),),
        found_by=CLUSTER,
    ),
    Planted(
        "segments_without_folder_fsync",
        "a new segment is lost entirely in a power failure",
        "LogJob.run syncs the folder",
        (Patch(LogJob, "run", _run_without_folder),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_round_skips_a_barrier",
        "many logs are written at once, and acknowledged records are only in the page cache",
        "together syncs the disk at each barrier",
        (Patch(durable, "_sync_all", _sync_all_but_batches),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_late_fsync_counts",
        "an fsync that began before a truncation counts for later writes",
        "PendingWork.done counts only up to the lowest truncation",
        (Patch(PendingWork, "done", _done_whatever_went),),
        found_by=CLUSTER,
    ),
    Planted(
        "recovered_pages_count_as_synced",
        "unsynced writes of a killed process are acknowledged by its successor, and lost in a power failure",
        "recovery fsyncs the bytes that it read",
        (Patch(_Recovery, "_make_durable", _durable_without_fsync),),
        found_by=CLUSTER,
    ),
    Planted(
        "recovery_without_checksums",
        "a flipped bit in a log is not detected",
        "scan_segment checks the CRC of everything beyond the indexes",
        (Patch(recovery_scan, "check_crc", parse_header),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_repair_asks_nobody",
        "a replica with a damaged disk truncates records that it is counted on to have",
        "ReplicaRepairs withdraws a replica only after the quorum has accepted its loss",
        (Patch(ReplicaRepairs, "_ask", _repair_at_once),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_scrubber_looks_at_no_record",
        "damage under a running process is never found",
        "the check of a segment reads all of it",
        (Patch(scrubber_check._SegmentCheck, "run", _read_nothing),),
        found_by=CLUSTER,
    ),
    Planted(
        "retention_beyond_the_high_watermark",
        "retention deletes uncommitted records",
        "PartitionDriver.retain ends at the high watermark",
        (Patch(PartitionDriver, "retain", _retain_to_the_end),),
        found_by=CLUSTER,
    ),
    Planted(
        "compaction_keeps_the_older_record",
        "the last value of a key is deleted",
        "choose keeps the last record of a key",
        (Patch(compaction_run, "choose", _keep_the_older),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_stale_replica_of_a_deleted_topic_rejoins",
        "a node that was down while a topic was recreated brings the old records back",
        "replica folders are named by the topic's id, and strays are set aside",
        (
            Patch(LogManager, "take", _take_what_is_there),
            Patch(LogManager, "set_strays_aside", _set_nothing_aside),
        ),
        found_by=CLUSTER,
    ),
)
