"""The error of a reader that finds something else than what was written."""

from __future__ import annotations

from raftlog.errors import DiskFailed
from raftlog.model import Offset


class LogDamaged(DiskFailed):
    """What was read is not what was written."""

    def __init__(self, detail: str, base_offset: Offset, generation: int) -> None:
        super().__init__(detail)
        self.base_offset = base_offset
        """Of the segment."""
        self.generation = generation
        """Of the log when the read began: a truncation in between explains the difference."""
