"""Verification of a backup: every checksum, CRC and offset of it and of the backups that it continues.

It needs no cluster. Every call blocks.
"""

from __future__ import annotations

import msgspec

from raftlog.errors import RaftlogError

from .batches import read_file
from .chain import PartitionFiles, StoredFile, files_of
from .format import BackedUpOffset, Manifest, data_path
from .progress import Progress
from .repository import Repository

MAX_PROBLEMS = 1_000


class Verification(msgspec.Struct, frozen=True):
    """The result."""

    backup: str
    backups: int
    """The number of backups in the chain."""
    topics: int
    partitions: int
    files: int
    batches: int
    bytes: int
    problems: list[str]
    """One line each; empty if all is well."""
    notes: list[str]
    """Values that a restore will change."""


def verify_backup(repository: Repository, name: str | None, progress: Progress) -> Verification:
    """Verify a backup; None: the newest.

    Raises `InvalidRequest` if its manifests cannot be read, or say that something is missing; `DiskError`.
    """
    chain = repository.chain(repository.choose(name))
    partitions = files_of(chain)
    problems: list[str] = []
    batches = 0
    for one in partitions.values():
        for stored in one.files:
            if len(problems) < MAX_PROBLEMS:
                batches += _verify_file(repository, one, stored, problems, progress)
    return Verification(
        backup=chain[0].name,
        backups=len(chain),
        topics=len(chain[0].topics),
        partitions=len(partitions),
        files=sum(len(one.files) for one in partitions.values()),
        batches=batches,
        bytes=sum(one.bytes for one in partitions.values()),
        problems=problems,
        notes=[
            f"group {group}: {one.topic}/{one.partition} is committed at {one.offset}, and a restore sets {offset}"
            for group, one, offset in clamped_offsets(chain[0], partitions)
        ],
    )


def clamped_offsets(
    manifest: Manifest, partitions: dict[tuple[str, int], PartitionFiles]
) -> list[tuple[str, BackedUpOffset, int]]:
    """Return the committed offsets that lie outside of their logs, each with its group and the nearest end."""
    found = []
    for group in manifest.groups:
        for one in group.offsets:
            log = partitions.get((one.topic, one.partition))
            if log is not None and log.topic_id == one.topic_id and one.offset > log.end_offset:
                found.append((group.group, one, log.end_offset))
    return found


def _verify_file(
    repository: Repository, one: PartitionFiles, stored: StoredFile, problems: list[str], progress: Progress
) -> int:
    where = f"{stored.backup}/{data_path(one.topic_id, one.partition, stored.file)}"
    try:
        data = repository.read_batches(stored.backup, one.topic_id, one.partition, stored.file)
        count = sum(1 for _ in read_file(stored.file, data, where))
    except RaftlogError as error:
        if error.retriable:
            raise
        problems.append(f"{one.topic}/{one.partition}: {error.detail}")
        return 0
    progress.advance(stored.file.bytes, stored.file.end_offset - stored.file.base_offset)
    return count
