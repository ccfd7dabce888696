"""Where replicas lie on disk: found at the start, opened, set aside, removed. All of it blocks; a worker runs it.

    partitions/<topic id>-<n>/             a replica
    partitions/<topic id>-<n>/flush-os     this replica is kept as `flush=os`: an unclean stop may have lost anything
    partitions-removed/<topic id>-<n>.<k>/ no longer a replica; deleted some time later

A folder is renamed before it is deleted, so that a crash never leaves half a replica under its own name. A stray folder
(of a topic that the cluster does not know) is kept for an hour, for somebody to notice; a deleted topic's goes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(slots=True)
class OpenedReplica:
    """A replica's log, recovered, and what recovery found."""

    topic_partition: TopicPartition
    log: PartitionLog
    producers: ProducerStates
    recovery: Recovery
    set_aside: list[str]
    """What was, now or earlier, and lies in its folder (`partitions/files/quarantine.py`)."""

    @property
    def report(self) -> ReplicaReport:
        """What the broker says of it when it registers."""
        recovery = self.recovery
        return ReplicaReport(
            self.topic_partition,
            recovery.clean,
            recovery.last_epoch,
            recovery.stable_end_offset,
            recovery.cut_or_quarantined,
        )


def folder_of(topic_partition: TopicPartition) -> str:
    """Path of the replica's folder."""
    return f"{FOLDER}/{topic_partition.directory_name}"


def parse_folder_name(name: str) -> TopicPartition | None:
    """The replica that such a folder holds; None for a name that none has."""
    topic, _, partition = name.rpartition("-")
    if len(topic) != 32 or not partition.isascii() or not partition.isdigit():
        return None
    try:
        found = TopicPartition(TopicId(bytes.fromhex(topic)), int(partition))
    except ValueError:
        return None
    return found if found.directory_name == name else None


def prepare_folders(disk: Disk) -> None:
    """The folders of replicas are there, and will be after a power loss: before any replica is in them."""
    disk.make_directory(FOLDER)
    disk.make_directory(REMOVED_FOLDER)
    disk.fsync_directory("")


def find_replicas(disk: Disk) -> list[TopicPartition]:
    """Every replica on disk, sorted."""
    found = [parse_folder_name(name) for name in disk.list(FOLDER)]
    return sorted(tp for tp in found if tp is not None)


def shares_syncs(disk: Disk, topic_partition: TopicPartition) -> bool:
    """Whether one call of the disk covers the replica, which may not be there yet."""
    try:
        try:
            return disk.syncs_all(folder_of(topic_partition))
        except FileNotFoundError:
            return disk.syncs_all(FOLDER)
    except DiskError:
        return False  # It will fail by itself.


def open_steps(
    disk: Disk,
    topic_partition: TopicPartition,
    config: TopicConfig | None,
    cache: FetchCache,
    shared: bool,
    *,
    clean_shutdown: bool,
    bounds: ProducerBounds = DEFAULT_BOUNDS,
) -> Steps[OpenedReplica]:
    """Open a replica, or begin one, from barrier to barrier (`partitions/files/durable.py`); recover it first. `config`
    None: the topic's settings are not known yet, only (by the marker) how it was flushed; whoever takes the replica
    configures its log. Raises `DiskError`."""
    path = folder_of(topic_partition)
    if config is None:
        config = replace(TopicConfig(), flush="os" if disk.exists(f"{path}/{FLUSH_OS_NAME}") else "fsync")
    producers = ProducerStates(bounds)
    log, recovery = yield from PartitionLog.open_steps(
        disk, path, config, clean_shutdown=clean_shutdown, producers=producers, cache=cache, shared=shared
    )
    return OpenedReplica(topic_partition, log, producers, recovery, quarantined(disk, path))


def set_aside(disk: Disk, topic_partition: TopicPartition) -> str:
    """Take the folder out of the replicas; returns its new path. An absent folder is fine. The log is closed."""
    number = 0
    while disk.exists(target := f"{REMOVED_FOLDER}/{topic_partition.directory_name}.{number}"):
        number += 1
    if disk.exists(folder_of(topic_partition)):
        disk.rename(folder_of(topic_partition), target)
        disk.fsync_directory(FOLDER)
        disk.fsync_directory(REMOVED_FOLDER)
    return target


def delete_set_aside(disk: Disk, path: str) -> None:
    """Delete a folder that `set_aside` made."""
    assert path.startswith(REMOVED_FOLDER + "/"), path
    disk.remove(path)
    disk.fsync_directory(REMOVED_FOLDER)


def find_set_aside(disk: Disk) -> list[str]:
    """What an earlier life set aside and did not delete."""
    return [f"{REMOVED_FOLDER}/{name}" for name in disk.list(REMOVED_FOLDER)]
