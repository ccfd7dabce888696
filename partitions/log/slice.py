"""The result of a log read: whole batches, as pieces of memory or regions of files, or a note that they are cold.

A slice with `FileRegion` parts holds files open: its receiver either sends every part (the carrier releases each
region) or calls `release`. A *cold* slice has no parts: its pages are not in memory, so sending it would block the
event loop on the disk. Its `load` is work for a `Worker` and returns the slice as bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from raftlog.model import Offset
from raftlog.ports import Part, release_regions


class ReadBy(enum.Enum):
    """The recipient of the batches."""

    CONSUMER = "consumer"
    FOLLOWER = "follower"
    """A follower, which also gets batches below the log start that still exist."""
    FOLLOWER_AGAIN = "follower again"
    """A follower that refused bytes: file data is treated as cold, so that its CRCs are checked before it is sent."""


class LogSlice(msgspec.Struct):
    """Consecutive whole batches.

    Invariant: `length` is the sum of the parts' bytes; a cold slice has no parts and a `load`.
    """

    first_offset: Offset
    """Base offset of the first batch, which may lie below the requested offset; the requested offset if empty."""
    next_offset: Offset
    """The offset to read next: the end offset of the last batch; `first_offset` if there is none."""
    parts: list[Part] = []
    length: int = 0
    """Bytes in `parts`."""
    batch_count: int = 0
    load: Callable[[], LogSlice] | None = None
    """For a `Worker`, if the slice is cold: blocks, touches only files, returns the slice as bytes (never cold).

    Raises `RetriableError("offset_not_available")` if the segment was removed meanwhile, and `LogDamaged`, which the
    caller passes to `PartitionLog.damage_found`, or another `DiskFailed`, which takes the replica out of service too.
    """

    @property
    def cold(self) -> bool:
        """Whether a worker has to load the batches first."""
        return self.load is not None

    def release(self) -> None:
        """Release every file region unsent; not for regions that a carrier has taken."""
        release_regions(self.parts)
        self.parts = []
