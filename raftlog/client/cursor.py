"""A batch that is being handed out record by record (`consumer.py`).

What is *not* here: decoding, and whose turn it is.
"""

from __future__ import annotations

from raftlog.config import KIB
from raftlog.record_batch import Codec

from .consumed import ConsumedBatch, ConsumerRecord
from .reader import PartitionReader

INLINE_RECORDS = 8192
"""Batches of more records are decoded by a thread: these take a few milliseconds."""
INLINE_COMPRESSED_BYTES = 16 * KIB
"""The same for compressed ones, whose size may be a thousand times that."""


class Cursor:
    """What was taken of a reader and is not wholly handed out. `records` is None until they are decoded."""

    __slots__ = ("batch", "next", "reader", "records", "version")

    def __init__(self, reader: PartitionReader, batch: ConsumedBatch) -> None:
        self.reader = reader
        self.version = reader.version
        self.batch = batch
        self.records: list[ConsumerRecord] | None = None
        self.next = 0

    @property
    def is_current(self) -> bool:
        """Nobody sought since it was taken."""
        return self.version == self.reader.version

    @property
    def is_long_work(self) -> bool:
        """Decoding it would hold up the loop."""
        header = self.batch.header
        compressed = header.codec is not Codec.NONE and header.total_bytes > INLINE_COMPRESSED_BYTES
        return compressed or header.record_count > INLINE_RECORDS
