"""What a read of a log gives: whole batches, as pieces of memory or regions of files, or a note that they are cold.

A slice with `FileRegion` parts holds files open: whoever takes it either sends every part (the carrier releases each
region) or calls `release`. A *cold* slice has no parts: its pages are not in memory, so that sending it would make the
one thread wait for the disk. Its `load` is work for a `Worker` and gives the slice again, as bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from raftlog.model import Offset
from raftlog.ports import FileRegion, Part


class ReadBy(enum.Enum):
    """Who gets the batches."""

    CONSUMER = "consumer"
    FOLLOWER = "follower"
    """Also those below the log start that are still there."""
    FOLLOWER_AGAIN = "follower again"
    """The same; what comes from files is cold, so that its CRCs are looked at: it may be what the follower refused."""


@dataclass(slots=True)
class LogSlice:
    """Whole batches that follow one another.

    Invariant: `length` is the sum of the parts' bytes; a cold slice has no parts and a `load`.
    """

    first_offset: Offset
    """Base offset of the first batch, which may lie below the offset asked for; the offset asked for where empty."""
    next_offset: Offset
    """Where to read on: the end offset of the last batch; `first_offset` where there is none."""
    parts: list[Part] = field(default_factory=list)
    length: int = 0
    """Bytes in `parts`."""
    batch_count: int = 0
    load: Callable[[], LogSlice] | None = None
    """For a `Worker` where the slice is cold: blocks, touches only files, returns the slice as bytes (never cold).
    Raises `RetriableError("offset_not_available")` where the segment went meanwhile, and `LogDamaged`, which the
    caller passes to `PartitionLog.damage_found`, or another `DiskFailed`, which the replica does not survive either."""

    @property
    def cold(self) -> bool:
        """Whether the batches have to be loaded by a worker first."""
        return self.load is not None

    def release(self) -> None:
        """Give up every file region, unsent. Not to be called for regions that a carrier has taken."""
        for part in self.parts:
            if isinstance(part, FileRegion):
                part.release()
        self.parts = []
