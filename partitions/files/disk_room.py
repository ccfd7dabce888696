"""Disk room for more batches: two marks, and the bytes appended since the disk was last asked.

Below the higher mark the node takes no batches from clients; below the lower one, half of that, also none from its
leaders. So the batches that leaders have accepted can still be replicated and committed, and retention can remove them:
otherwise the last batches of each partition would wait for room that only their removal makes. A mark that was crossed
stays in force until there is a quarter more.

The disk is asked once a second, and a second's batches may be a gigabyte: they count as written, as do those that were
appended while the disk was asked.
"""

from __future__ import annotations

from raftlog.errors import DiskFull
from raftlog.ports import Space

SHARE_OF_DISK = 20
"""The divisor for the largest reserve: at most one twentieth of the disk."""


class DiskRoom:
    """The disk room of one node. Pure.

    Invariant: what may be taken from a leader may be more than what may be taken from a client, never less.
    """

    def __init__(self, reserved: int) -> None:
        """`reserved`: free bytes below which clients are refused, if the disk is large enough; 0: it may fill."""
        self._reserved = reserved
        self._space: Space | None = None
        self._mark = 0
        self._appended = self._appended_before = 0
        """Bytes since the last query of the disk began, and between that and the query before."""
        self.short = False
        """Whether clients' batches are refused."""
        self.very_short = False
        """Whether leaders' batches are refused, too."""

    @property
    def free(self) -> int:
        """The bytes that are still free, as far as is known; at least 0."""
        left = self._space.free if self._space is not None else 0
        return max(0, left - self._appended - self._appended_before)

    @property
    def reserved(self) -> int:
        """The higher mark, in bytes."""
        return self._mark

    def begin_look(self) -> None:
        """Record that a measurement of the disk is in progress."""
        self._appended_before, self._appended = self._appended, 0

    def looked(self, space: Space) -> None:
        """Apply the disk's answer."""
        self._space = space
        self._mark = min(self._reserved, space.total // SHARE_OF_DISK)
        self._judge()

    def appended(self, size: int) -> None:
        """Count a batch of `size` bytes that will be written."""
        self._appended += size
        if not self.very_short and self._space is not None:
            self._judge()

    def _judge(self) -> None:
        assert self._space is not None
        in_use = not self._space.reserve_whole
        self.short = in_use or self.free < _mark(self._mark, met=self.short)
        self.very_short = in_use or self.free < _mark(self._mark // 2, met=self.very_short)

    def refusal(self, name: str) -> DiskFull:
        """Return the error for a client's append to the partition `name`."""
        return DiskFull(
            f"the disk of the leader of {name} is short of room: {self.free} bytes are free, and below {self._mark} "
            "nothing is appended (`disk_reserved_bytes`). Appends resume when retention has removed enough; free "
            "some space, shorten retention.ms or retention.bytes, or move replicas to other nodes"
        )


def _mark(mark: int, *, met: bool) -> int:
    return mark + mark // 4 if met else mark
