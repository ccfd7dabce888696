"""The chain of backups that end in one: which files hold each partition, and whether they hold all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from raftlog.errors import InvalidRequest

from .format import BackedUpPartition, BackedUpTopic, BatchFile, Manifest, number_of

MAX_CHAIN = 1_000
"""Bound on the manifests that are in memory at once."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file of batches, and the backup whose folder it is in."""

    backup: str
    file: BatchFile


class PartitionFiles(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as a chain of backups holds it."""

    topic: str
    topic_id: str
    partition: int
    log_start_offset: int
    end_offset: int
    files: tuple[StoredFile, ...]
    """Those with offsets from `log_start_offset` on, in order."""
    greatest_producer_id: int

    @property
    def bytes(self) -> int:
        return sum(one.file.bytes for one in self.files)

    @property
    def first_offset(self) -> int:
        """Where the files begin; the end if there are none."""
        return self.files[0].file.base_offset if self.files else self.end_offset


def newest(names: Iterable[str]) -> str | None:
    """Return the newest complete backup, or None. Raises `InvalidRequest` if two were written at the same time."""
    ordered = sorted(names, key=number_of)
    if len(ordered) > 1 and number_of(ordered[-1]) == number_of(ordered[-2]):
        told = f"{ordered[-2]} and {ordered[-1]} were written at the same time: name one of them with --backup"
        raise InvalidRequest("invalid_request", told)
    return ordered[-1] if ordered else None


def files_of(chain: Sequence[Manifest]) -> dict[tuple[str, int], PartitionFiles]:
    """Return the files of each partition of the last manifest, by topic name and partition.

    `chain`: the backups from the last to the first. Raises `InvalidRequest` if the manifests contradict each other, or
    if a partition is not whole.
    """
    found: dict[tuple[str, int], PartitionFiles] = {}
    ids: set[str] = set()
    for topic in chain[0].topics:
        if topic.id in ids or (topic.name, 0) in found:
            raise _contradiction(chain[0], f"topic {topic.name} is there twice")
        ids.add(topic.id)
        for number, one in enumerate(topic.partitions):
            if one.partition != number:
                raise _contradiction(chain[0], f"partition {number} of topic {topic.name} is missing")
            found[topic.name, number] = _partition(chain, topic, one)
    return found


def _partition(chain: Sequence[Manifest], topic: BackedUpTopic, last: BackedUpPartition) -> PartitionFiles:
    pieces: list[tuple[str, BackedUpPartition]] = []
    one: BackedUpPartition | None = last
    for manifest in chain:
        if manifest is not chain[0]:
            one = next((each for each in _partitions(manifest, topic.id) if each.partition == last.partition), None)
        if one is None:
            raise _contradiction(manifest, f"it lacks {topic.name}/{last.partition}, which a later backup continues")
        pieces.append((manifest.name, one))
        if not one.continues:
            break
    else:
        raise _contradiction(chain[-1], f"{topic.name}/{last.partition} continues a backup before the first one")
    pieces.reverse()
    where = f"{topic.name}/{last.partition}"
    stored = tuple(
        StoredFile(name, file)
        for name, piece in pieces
        for file in piece.files
        if file.end_offset > last.log_start_offset
    )
    _check_whole(chain[0], where, last, stored)
    return PartitionFiles(
        topic=topic.name,
        topic_id=topic.id,
        partition=last.partition,
        log_start_offset=last.log_start_offset,
        end_offset=last.end_offset,
        files=stored,
        greatest_producer_id=max(piece.greatest_producer_id for _, piece in pieces),
    )


def _partitions(manifest: Manifest, topic_id: str) -> Sequence[BackedUpPartition]:
    return next((topic.partitions for topic in manifest.topics if topic.id == topic_id), ())


def _check_whole(manifest: Manifest, where: str, last: BackedUpPartition, stored: Sequence[StoredFile]) -> None:
    if last.log_start_offset > last.end_offset:
        raise _contradiction(manifest, f"{where} begins after its end")
    if not stored:
        if last.log_start_offset != last.end_offset:
            raise _contradiction(manifest, f"{where} has no file, but records")
        return
    if stored[0].file.base_offset > last.log_start_offset:
        raise _contradiction(manifest, f"{where} lacks what is before {stored[0].file.base_offset}")
    expected = stored[0].file.base_offset
    for one in stored:
        if one.file.base_offset != expected or one.file.end_offset <= expected:
            raise _contradiction(manifest, f"{where} lacks a file at {expected}")
        expected = one.file.end_offset
    if expected != last.end_offset:
        raise _contradiction(manifest, f"{where} ends at {last.end_offset}, and its files at {expected}")


def _contradiction(manifest: Manifest, why: str) -> InvalidRequest:
    return InvalidRequest("invalid_request", f"backup {manifest.name} contradicts itself: {why}")
