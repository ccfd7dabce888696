"""The error for bytes that are not those written."""

from __future__ import annotations

from raftlog.errors import DiskFailed
from raftlog.model import Offset


class LogDamaged(DiskFailed):
    """The bytes read are not those written."""

    def __init__(self, detail: str, base_offset: Offset, generation: int) -> None:
        super().__init__(detail)
        self.base_offset = base_offset
        """The base offset of the segment."""
        self.generation = generation
        """The log's generation when the read began: a truncation in between explains the difference."""
