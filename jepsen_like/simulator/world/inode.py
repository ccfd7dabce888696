"""A file of a simulated disk: durable content, page cache, the operations between the two, and damage.

A power failure keeps, of every unsynced write, all, nothing or a prefix torn at 512 bytes. All random choices come from
the given generator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SECTOR = 512


@dataclass(slots=True, eq=False)
class Inode:
    """A file's content.

    Invariant: without `pending` operations both contents are equal.
    """

    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, bytes) for a write, (length, None) for a truncation."""
    losses: int = 0
    """Number of failed `sync_all` calls while operations were pending."""
    rot: dict[int, int] = field(default_factory=dict)
    """Position → bits that were flipped there, in both contents."""

    def write(self, position: int, data: bytes) -> None:
        _write(self.current, position, data)
        self.pending.append((position, data))
        if self.rot:
            self._rot_goes(position, position + len(data))

    def truncate(self, length: int) -> None:
        _truncate(self.current, length)
        self.pending.append((length, None))
        if self.rot:
            self._rot_goes(length, max(self.rot) + 1)

    def fsync(self) -> None:
        for position, data in self.pending:
            if data is None:
                _truncate(self.durable, position)
            else:
                _write(self.durable, position, data)
        self.pending.clear()

    def fsync_last_write(self) -> None:
        """Make the last write durable.

        Earlier writes stay pending: a power failure may drop them and leave a hole. Earlier truncations become durable:
        the file's length is in the journal, which is ordered.
        """
        position, data = self.pending.pop()
        assert data is not None
        pending, self.pending = self.pending, []
        for before, written in pending:
            if written is None:
                _truncate(self.durable, before)
                self._keep_pending(before, None)
            else:
                self.pending.append((before, written))
        self._keep_pending(position, position + len(data))
        _write(self.durable, position, data)

    def _keep_pending(self, start: int, end: int | None) -> None:
        """Keep only the pending parts outside of `[start, end)`, or before `start`: the rest is no longer in
        the file.
        """
        kept: list[tuple[int, bytes | None]] = []
        for position, written in self.pending:
            assert written is not None
            parts = [(position, written[: max(0, start - position)])]
            if end is not None:
                parts.append((max(position, end), written[max(0, end - position) :]))
            kept += [(place, part) for place, part in parts if part]
        self.pending = kept

    def forget(self) -> None:
        """Drop pending data, as after a failed fsync: the pages are marked clean, and their data is lost."""
        self.pending.clear()
        self.current = bytearray(self.durable)

    def lose_power(self, rng: random.Random) -> None:
        for position, data in self.pending:
            draw = rng.random()
            if data is None:
                if draw < 0.5:
                    _truncate(self.durable, position)
            elif draw < 0.4:
                _write(self.durable, position, data)
            elif draw < 0.7:
                kept = rng.randrange(0, len(data) + 1)
                sector_end = (position + kept) // SECTOR * SECTOR - position
                _write(self.durable, position, data[: max(sector_end, 0)])
        self.pending.clear()
        self.current = bytearray(self.durable)

    # --- Rot ---

    def flip(self, position: int, mask: int) -> None:
        """Flip bits in the page cache and on the medium; pending operations become durable first."""
        self.fsync()
        self.current[position] ^= mask
        self.durable[position] ^= mask

    def rots(self, position: int, mask: int) -> None:
        """Flip bits as `flip` does, and remember them: `turn` shows the original file."""
        self.flip(position, mask)
        self.rot[position] = self.rot.get(position, 0) ^ mask

    def turn(self) -> None:
        """Switch between the original and the damaged content."""
        for position, mask in self.rot.items():
            for content in (self.current, self.durable):
                if position < len(content):
                    content[position] ^= mask

    def _rot_goes(self, start: int, end: int) -> None:
        """Forget the damage in a range that is overwritten or cut off."""
        for position in [position for position in self.rot if start <= position < end]:
            mask = self.rot.pop(position)
            if position < len(self.durable):
                self.durable[position] ^= mask


def _write(content: bytearray, position: int, data: bytes) -> None:
    if not data:
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _truncate(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content.extend(bytes(length - len(content)))
