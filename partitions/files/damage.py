"""The error for bytes that are not those written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from raftlog.errors import CorruptBatch, DiskFailed, RetriableError
from raftlog.model import Offset
from raftlog.ports import Disk, File

from .segment import segment_name


class LogDamaged(DiskFailed):
    """The bytes read are not those written."""

    def __init__(self, detail: str, base_offset: Offset, generation: int) -> None:
        super().__init__(detail)
        self.base_offset = base_offset
        """The base offset of the segment."""
        self.generation = generation
        """The log's generation when the read began: a truncation in between explains the difference."""


@contextlib.contextmanager
def cold_segment(disk: Disk, path: str, base_offset: Offset, generation: int) -> Iterator[File]:
    """Open a segment's file for a read by name, whose errors then mean what `LogSlice.load` says."""
    try:
        with contextlib.closing(disk.open(f"{path}/{segment_name(base_offset)}")) as file:
            try:
                yield file
            except (CorruptBatch, DiskFailed) as error:
                # A sector that the disk has lost is damage like any other.
                raise LogDamaged(f"{path}: {error.detail}", base_offset, generation) from None
    except FileNotFoundError:
        raise RetriableError("offset_not_available", f"{path}: segment {base_offset} was removed meanwhile") from None
