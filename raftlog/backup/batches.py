"""Batches in a backup's files: written with their checksums, and read back with every check."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.idempotency import is_keyed
from raftlog.model import NO_PRODUCER_ID
from raftlog.ports import Buffer
from raftlog.records.batch import BatchHeader, check_crc, split_batches
from raftlog.records.control import decode_control
from raftlog.records.header import HEADER_BYTES

from .format import BatchFile, LastBatch, digest_of

EPOCH = slice(12, 16)
"""The leader epoch, which the leader stamps."""
_NO_EPOCH = bytes(4)


def without_epoch(batch: Buffer) -> list[Buffer]:
    """Return a batch in pieces, with a leader epoch of 0."""
    view = memoryview(batch)
    return [view[: EPOCH.start], _NO_EPOCH, view[EPOCH.stop :]]


def is_same(batch: Buffer, other: Buffer) -> bool:
    """Return whether two batches are equal apart from their leader epochs."""
    one, two = memoryview(batch), memoryview(other)
    return one[: EPOCH.start] == two[: EPOCH.start] and one[EPOCH.stop :] == two[EPOCH.stop :]


class FileBuilder:
    """The next file of one partition, in memory."""

    def __init__(self, limit: int) -> None:
        """`limit`: the size in bytes that a file does not pass, unless by its only batch."""
        self._limit = limit
        self._data = bytearray()
        self._content = hashlib.sha256()
        self._headers: tuple[BatchHeader, BatchHeader] | None = None
        self._batches = 0
        self.last: LastBatch | None = None
        """The last batch that was ever added."""
        self.greatest_producer_id = -1
        """Of all batches that were ever added; a hole names the ids that it replaces."""

    def has_room(self, batch: Buffer) -> bool:
        return not self._data or len(self._data) + memoryview(batch).nbytes <= self._limit

    @property
    def end_offset(self) -> int | None:
        """The offset at which the next batch must begin; None if the file is empty."""
        return None if self._headers is None else self._headers[1].end_offset

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        self._data += batch
        for piece in without_epoch(batch):
            self._content.update(piece)
        self._headers = (header if self._headers is None else self._headers[0], header)
        self._batches += 1
        self.last = LastBatch(header.base_offset, header.crc)
        self.greatest_producer_id = max(self.greatest_producer_id, *_producer_ids(header, batch))

    def take(self) -> tuple[BatchFile, bytes] | None:
        """Return the file and its content, and begin the next one; None if it is empty."""
        if self._headers is None:
            return None
        data = bytes(self._data)
        first, last = self._headers
        file = BatchFile(
            base_offset=first.base_offset,
            end_offset=last.end_offset,
            bytes=len(data),
            batches=self._batches,
            sha256=digest_of(data),
            content_sha256=self._content.hexdigest(),
            first_epoch=first.leader_epoch,
            last_epoch=last.leader_epoch,
        )
        self._data.clear()
        self._content = hashlib.sha256()
        self._headers, self._batches = None, 0
        return file, data


def _producer_ids(header: BatchHeader, batch: Buffer) -> list[int]:
    """Return the producer id of a batch, and those that a marker names; not those of idempotency keys, which do not
    count up."""
    if not header.is_control:
        return [NO_PRODUCER_ID if is_keyed(header.producer_id) else header.producer_id]
    control = decode_control(header, memoryview(batch)[HEADER_BYTES:])
    return [header.producer_id, *(one.producer_id for one in control.entries)]


def read_file(file: BatchFile, data: bytes, where: str) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a file after all its checks: checksum, CRCs, offsets, counts.

    Raises `InvalidRequest`, which names `where` the file is, before anything is yielded.
    """
    found = []
    try:
        if len(data) != file.bytes:
            raise CorruptBatch(f"it has {len(data)} bytes, not {file.bytes}")
        if digest_of(data) != file.sha256:
            raise CorruptBatch("its SHA-256 is not that of the manifest")
        expected, epoch, content = file.base_offset, -1, hashlib.sha256()
        for batch in split_batches(data):
            header = check_crc(batch)
            if header.base_offset != expected:
                raise CorruptBatch(f"a batch begins at {header.base_offset}, not at {expected}")
            if header.leader_epoch < epoch:
                raise CorruptBatch(f"at {expected} the leader epoch falls from {epoch} to {header.leader_epoch}")
            if header.is_control:
                decode_control(header, batch[HEADER_BYTES:])
            for piece in without_epoch(batch):
                content.update(piece)
            expected, epoch = header.end_offset, header.leader_epoch
            found.append((header, batch))
        told = (expected, len(found), content.hexdigest())
        if told != (file.end_offset, file.batches, file.content_sha256):
            raise CorruptBatch(f"it has {len(found)} batches up to {expected}, not what the manifest says")
    except CorruptBatch as error:
        raise InvalidRequest("corrupt_batch", f"{where} is damaged: {error.detail}") from None
    return iter(found)
