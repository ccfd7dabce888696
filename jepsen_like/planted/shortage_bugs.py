"""Bugs of shortages and unforeseen exceptions: a temporary refusal is taken for damage, and damaged state
stays in use.
"""

from __future__ import annotations

from typing import Any

from partitions.driver.driver import PartitionDriver
from partitions.log.log import PartitionLog
from partitions.log.writer import LogWriter
from partitions.opening.log_manager import LogManager
from raftlog.errors import DiskFailed, RaftlogError, ResourceShortage

from .patches import CLUSTER, Patch, Planted, original

_job_done = original(PartitionLog, "job_done")
_read = original(PartitionLog, "read")
_done = original(LogWriter, "_done")


def _a_shortage_fails_the_log(log: Any, job: Any, error: BaseException | None) -> None:
    _job_done(log, job, DiskFailed(error.detail) if isinstance(error, ResourceShortage) else error)


def _a_shortage_fails_the_read(log: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return _read(log, *arguments, **options)
    except ResourceShortage as error:
        log.failed = DiskFailed(error.detail)
        raise log.failed from None


def _go_on(driver: Any, error: BaseException) -> None:
    pass


def _a_broken_job_is_unheard(writer: Any, running: Any, error: BaseException | None) -> None:
    if error is None or isinstance(error, RaftlogError):
        _done(writer, running, error)


def _stay_closed(shelf: Any, tp: Any, log: Any, pause: float) -> None:
    shelf._opening[tp] = None
    log.close(clean=False)
    shelf._writer.forget(log, lambda: None)


SHORTAGE_BUGS = (
    Planted(
        "a_shortage_takes_replicas_offline",
        "a file that could not be opened for lack of a descriptor takes its replica offline until a restart",
        "PartitionLog.job_done and PartitionLog.read distinguish `DiskHindered` from errors that fail a log",
        (
            Patch(PartitionLog, "job_done", _a_shortage_fails_the_log),
            Patch(PartitionLog, "read", _a_shortage_fails_the_read),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "a_half_updated_replica_goes_on",
        "an exception between log and producer state is ignored, and the replica serves with half the update",
        "PartitionDriver.throw_away closes the replica and reopens it",
        (Patch(PartitionDriver, "throw_away", _go_on),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_broken_job_is_unheard",
        "a log's job dies with an unforeseen exception that is not reported: its requests wait forever",
        "LogWriter._done reports every outcome to the log",
        (Patch(LogWriter, "_done", _a_broken_job_is_unheard),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_reset_replica_stays_closed",
        "a replica that was reset is never reopened",
        "LogManager.reopen_as_it_is reopens it",
        (Patch(LogManager, "reopen_as_it_is", _stay_closed),),
        found_by=CLUSTER,
    ),
)
