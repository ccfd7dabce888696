"""The check of the replicas in the data folder of a stopped node (`raftlog partition verify --data-folder`).

The folder's lock is held during the check, so that no node starts on it; nothing in it is changed. Topics are named by
id, like the folders: only the quorum knows their names, and it is not running.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from partitions.files.segment import LOG_SUFFIX
from partitions.opening.folders import find_replicas, folder_of
from partitions.upkeep.folder_check import check_folder
from partitions.upkeep.scrub_check import FolderCheck
from raftlog.errors import InvalidRequest
from raftlog.model import TopicPartition
from raftlog.system.disk import LocalDisk

from .identity import LOCK_FILE, read_identity


class VerifiedReplica(msgspec.Struct, frozen=True):
    """The result of the check of one replica."""

    topic_id: str
    """Topic id as 32 hex digits."""
    partition: int
    bytes_read: int
    findings: tuple[str, ...]
    """One line for each finding; empty if the replica is intact."""


class FolderVerifier:
    """A check of a stopped node's replicas, planned by the constructor and done by `run`. Close it, because it holds
    the folder's lock."""

    def __init__(self, folder: str, topic_id: str | None = None, partition: int | None = None) -> None:
        """`topic_id` and `partition` restrict the check.

        Raises `InvalidRequest` if the folder is not a node's or has no such replica, and `DiskFailed` if a node runs on
        it or it cannot be read.
        """
        self._folder = folder
        self._disk = LocalDisk(folder)
        if not os.path.isdir(folder):
            raise InvalidRequest("invalid_config", f"{folder} is not a folder")
        self.node_id = read_identity(self._disk, folder).node_id
        self._lock = self._disk.lock(LOCK_FILE)
        try:
            found = [tp for tp in find_replicas(self._disk) if _is_wanted(tp, topic_id, partition)]
            if not found and topic_id is not None:
                raise InvalidRequest("not_found", f"{folder} has no replica of {topic_id}: give the topic's id")
            self._checks = {tp: check_folder(self._disk, folder_of(tp)) for tp in found}
        except BaseException:
            self._lock.close()
            raise

    @property
    def replicas(self) -> int:
        """Number of replicas that `run` checks."""
        return len(self._checks)

    @property
    def total_bytes(self) -> int:
        """Approximate number of bytes that `run` reads: those of the segments, also of the last one of a log."""
        paths = [f"{folder_of(tp)}/{name}" for tp in self._checks for name in self._disk.list(folder_of(tp))]
        return sum(os.path.getsize(os.path.join(self._folder, path)) for path in paths if path.endswith(LOG_SUFFIX))

    def run(self, on_read: Callable[[int], None]) -> list[VerifiedReplica]:
        """Read everything, and call `on_read` with the number of bytes read. Blocks. Raises `DiskFailed`."""
        return [_verified(tp, check, on_read) for tp, check in sorted(self._checks.items())]

    def close(self) -> None:
        self._lock.close()


def _is_wanted(tp: TopicPartition, topic_id: str | None, partition: int | None) -> bool:
    return topic_id in (None, tp.topic_id.hex()) and partition in (None, tp.partition)


def _verified(tp: TopicPartition, check: FolderCheck, on_read: Callable[[int], None]) -> VerifiedReplica:
    findings = tuple(map(str, check.run(on_read)))
    return VerifiedReplica(tp.topic_id.hex(), tp.partition, check.bytes_read, findings)
