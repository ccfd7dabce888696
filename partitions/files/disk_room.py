"""Whether this node's disk has room for more batches: two marks, and what was appended since somebody looked.

Below the higher mark the node takes no batches from clients; below the lower one, half of that, also none from its
leaders. So what leaders have accepted can still become replicated, is committed, and may be removed by retention: else
the last batches of each partition would wait for room that only their removal makes. A mark that was met counts until
there is a quarter more.

A look is a second old, and a second's batches may be a gigabyte: they count as written, as do those that were appended
while the disk was asked.
"""

from __future__ import annotations

from raftlog.errors import DiskFull
from raftlog.ports import Space

SHARE_OF_DISK = 20
"""At most this part of a disk is kept: one twentieth."""


class DiskRoom:
    """One node's. Pure.

    Invariant: what may be taken from a leader may be more than what may be taken from a client, never less.
    """

    def __init__(self, reserved: int) -> None:
        """`reserved`: bytes below which nothing is taken from clients, where the disk is large enough for so many; 0:
        the disk may be filled."""
        self._reserved = reserved
        self._space: Space | None = None
        self._mark = 0
        self._appended = self._appended_before = 0
        """Bytes since the last look began, and in the look before that."""
        self.short = False
        """No batches of clients are taken."""
        self.very_short = False
        """Nor any of a leader."""

    @property
    def free(self) -> int:
        """Bytes that may be left, as far as is known; at least 0."""
        left = self._space.free if self._space is not None else 0
        return max(0, left - self._appended - self._appended_before)

    @property
    def reserved(self) -> int:
        """The higher mark, in bytes."""
        return self._mark

    def begin_look(self) -> None:
        """The disk is being asked."""
        self._appended_before, self._appended = self._appended, 0

    def looked(self, space: Space) -> None:
        """Its answer."""
        self._space = space
        self._mark = min(self._reserved, space.total // SHARE_OF_DISK)
        self._judge()

    def appended(self, size: int) -> None:
        """A batch of so many bytes will be written."""
        self._appended += size
        if not self.very_short and self._space is not None:
            self._judge()

    def _judge(self) -> None:
        assert self._space is not None
        in_use = not self._space.reserve_whole
        self.short = in_use or self.free < _mark(self._mark, met=self.short)
        self.very_short = in_use or self.free < _mark(self._mark // 2, met=self.very_short)

    def refusal(self, name: str) -> DiskFull:
        """What a client is told that wants to append to the partition `name`."""
        return DiskFull(
            f"the disk of the leader of {name} is short of room: {self.free} bytes are free, and below {self._mark} "
            "nothing is appended (`disk_reserved_bytes`). It goes on by itself when retention has removed enough; free "
            "some space, shorten retention.ms or retention.bytes, or move replicas to other nodes"
        )


def _mark(mark: int, *, met: bool) -> int:
    return mark + mark // 4 if met else mark
