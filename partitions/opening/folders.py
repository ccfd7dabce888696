"""The folders of replicas: found at the start, opened, set aside, removed. All of it blocks; a worker runs it.

    partitions/<topic id>-<n>/             a replica
    partitions/<topic id>-<n>/flush-os     the replica has `flush=os`: an unclean stop may have lost anything
    partitions-removed/<topic id>-<n>.<k>/ a former replica; deleted some time later

A folder is renamed before it is deleted, so that a crash never leaves half a replica under its own name. A stray folder
(of a topic that the cluster does not know) is kept for an hour, so that an operator may notice it; a deleted topic's is
deleted at once.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from partitions.files.checkpoint import FLUSH_OS_NAME
from partitions.files.durable import Steps
from partitions.files.quarantine import quarantined
from partitions.log.log import PartitionLog
from partitions.log.tail import FetchCache
from partitions.producers.state import DEFAULT_BOUNDS, ProducerBounds, ProducerStates
from partitions.recovery.outcome import Recovery
from raftlog.config import TopicConfig
from raftlog.errors import DiskError
from raftlog.model import ReplicaReport, TopicId, TopicPartition
from raftlog.ports import Disk

FOLDER = "partitions"
REMOVED_FOLDER = "partitions-removed"


class OpenedReplica(msgspec.Struct):
    """A replica's log, recovered, and the outcome of its recovery."""

    topic_partition: TopicPartition
    log: PartitionLog
    producers: ProducerStates
    recovery: Recovery
    set_aside: list[str]
    """The quarantined files in its folder, of this recovery and earlier ones (`partitions/files/quarantine.py`)."""

    @property
    def report(self) -> ReplicaReport:
        """The replica's report for the broker's registration."""
        recovery = self.recovery
        return ReplicaReport(
            self.topic_partition,
            recovery.clean,
            recovery.last_epoch,
            recovery.stable_end_offset,
            recovery.cut_or_quarantined,
        )


def folder_of(topic_partition: TopicPartition) -> str:
    """Return the path of the replica's folder."""
    return f"{FOLDER}/{topic_partition.directory_name}"


def parse_folder_name(name: str) -> TopicPartition | None:
    """Return the replica that a folder of this name holds; None for any other name."""
    topic, _, partition = name.rpartition("-")
    if len(topic) != 32 or not partition.isascii() or not partition.isdigit():
        return None
    try:
        found = TopicPartition(TopicId(bytes.fromhex(topic)), int(partition))
    except ValueError:
        return None
    return found if found.directory_name == name else None


def prepare_folders(disk: Disk) -> None:
    """Create the folders of replicas, durably, before any replica is in them."""
    disk.make_directory(FOLDER)
    disk.make_directory(REMOVED_FOLDER)
    disk.fsync_directory("")


def find_replicas(disk: Disk) -> list[TopicPartition]:
    """Return every replica on disk, sorted."""
    found = [parse_folder_name(name) for name in disk.list(FOLDER)]
    return sorted(tp for tp in found if tp is not None)


def shares_syncs(disk: Disk, topic_partition: TopicPartition) -> bool:
    """Whether one call of the disk syncs the replica, which may not exist yet."""
    try:
        try:
            return disk.syncs_all(folder_of(topic_partition))
        except FileNotFoundError:
            return disk.syncs_all(FOLDER)
    except DiskError:
        return False  # Opening the replica will report the error.


def open_steps(
    disk: Disk,
    topic_partition: TopicPartition,
    config: TopicConfig | None,
    cache: FetchCache,
    shared: bool,
    *,
    clean_shutdown: bool,
    same_process: bool = False,
    bounds: ProducerBounds = DEFAULT_BOUNDS,
) -> Steps[OpenedReplica]:
    """Return the steps that recover and open a replica, or create one (`partitions/files/durable.py`).

    If `config` is None, only the flush mode is known yet (by the marker), and the replica's taker configures its log.
    The steps raise `DiskError`.
    """
    path = folder_of(topic_partition)
    if config is None:
        config = replace(TopicConfig(), flush="os" if disk.exists(f"{path}/{FLUSH_OS_NAME}") else "fsync")
    producers = ProducerStates(bounds)
    log, recovery = yield from PartitionLog.open_steps(
        disk,
        path,
        config,
        clean_shutdown=clean_shutdown,
        producers=producers,
        cache=cache,
        shared=shared,
        same_process=same_process,
    )
    return OpenedReplica(topic_partition, log, producers, recovery, quarantined(disk, path))


def set_aside(disk: Disk, topic_partition: TopicPartition) -> str:
    """Move the folder of a closed log away from the replicas, and return its new path. The folder may be absent."""
    number = 0
    while disk.exists(target := f"{REMOVED_FOLDER}/{topic_partition.directory_name}.{number}"):
        number += 1
    if disk.exists(folder_of(topic_partition)):
        disk.rename(folder_of(topic_partition), target)
        disk.fsync_directory(FOLDER)
        disk.fsync_directory(REMOVED_FOLDER)
    return target


def delete_set_aside(disk: Disk, path: str) -> None:
    """Delete a folder that `set_aside` moved."""
    assert path.startswith(REMOVED_FOLDER + "/"), path
    disk.remove(path)
    disk.fsync_directory(REMOVED_FOLDER)


def find_set_aside(disk: Disk) -> list[str]:
    """Return the folders that an earlier process set aside and did not delete."""
    return [f"{REMOVED_FOLDER}/{name}" for name in disk.list(REMOVED_FOLDER)]
