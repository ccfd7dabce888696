"""Backups made by hand: batches of a log with holes and markers, and whole repositories in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raftlog.backup.batches import FileBuilder
from raftlog.backup.format import (
    BackedUpGroup,
    BackedUpOffset,
    BackedUpPartition,
    BackedUpTopic,
    BatchFile,
    LastBatch,
    Manifest,
    backup_name,
)
from raftlog.backup.repository import Repository
from raftlog.backup.storage import FileStore
from raftlog.records.batch import encode, encode_control, parse_header, stamp
from raftlog.records.batch_filter import hole

TOPIC_ID = "ab" * 16


def batch(base_offset: int, count: int = 3, *, epoch: int = 0, producer: int = -1, sequence: int = 0) -> bytes:
    """Return a batch as a leader has it."""
    idempotent = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence} if producer >= 0 else {}
    values = [b"%d" % (base_offset + number) for number in range(count)]
    return b"".join(stamp(encode(values, base_timestamp_ms=1_000, **idempotent), base_offset, epoch))


def marker(offset: int, producer: int, *, epoch: int = 0) -> bytes:
    data = encode_control(1, [(producer, 0, offset)], base_timestamp_ms=1_000)
    return b"".join(stamp(data, offset, epoch))


def file_of(batches: Sequence[bytes]) -> tuple[BatchFile, bytes, LastBatch | None]:
    builder = FileBuilder(1 << 30)
    for one in batches:
        builder.add(parse_header(one), one)
    taken = builder.take()
    assert taken is not None
    return *taken, builder.last


LOG = (batch(0), hole(3, 7, 0, -1, 4), batch(7, 2, producer=5), marker(9, 5, epoch=1), batch(10, 5, epoch=2))
"""A whole log from 0 to 15, with a hole, a marker and three leader epochs."""


class HandMade:
    """A repository in a folder with one topic of one partition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository(FileStore(str(folder)))
        self._last: tuple[str, str] | None = None
        self._number = 0

    def add(
        self,
        files: Sequence[Sequence[bytes]],
        *,
        end: int,
        start: int = 0,
        continues: bool = False,
        committed: int = 0,
        incomplete: bool = False,
    ) -> Manifest:
        """Add a backup with these files, after the last one."""
        self._number += 1
        name = backup_name(self._number, "0" * 7 + "a")
        facts = []
        last = None
        for batches in files:
            file, data, last = file_of(batches)
            self.repository.write_batches(name, TOPIC_ID, 0, file, data)
            facts.append(file)
        partition = BackedUpPartition(
            partition=0, log_start_offset=start, end_offset=end, continues=continues, last=last, files=facts
        )
        offsets = [BackedUpOffset("orders", TOPIC_ID, 0, committed)]
        manifest = Manifest(
            name=name,
            previous=self._last[0] if self._last else None,
            previous_sha256=self._last[1] if self._last else None,
            created_ms=1_000,
            version="0",
            cluster_id="c",
            feature_level=1,
            next_producer_id=6,
            topics=[BackedUpTopic(name="orders", id=TOPIC_ID, replication_factor=1, partitions=[partition])],
            groups=[BackedUpGroup("billing", offsets)],
        )
        if not incomplete:
            self.repository.complete(manifest)
            self._last = (name, self.repository.manifest(name)[1])
        return manifest
