"""The transfer of a snapshot from the leader to a peer whose log is too short: bounded chunks, one at a time.

The leader sends a chunk and waits for the answer, which says how many bytes the receiver holds; the next chunk begins
there. Whatever is lost, delayed or duplicated, the transfer continues from what the receiver really has. A chunk that
does not continue the held bytes is answered and otherwise ignored.

While no answer arrives, heartbeats ask how many bytes are held. Every such query is answered too, so an answer
without progress resends the chunk only after several queries. Otherwise each heartbeat of a long transfer would add
another copy of the whole of it.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from metadata.journal.snapshot_file import MAX_SNAPSHOT_BYTES, Snapshot
from raftlog.errors import RemoteProtocolError

from .messages import SNAPSHOT_CHUNK_BYTES, SnapshotChunk

ASKED_BEFORE_AGAIN = 3
"""Queries without progress after which a chunk counts as lost. An open link does not lose one."""


class OutgoingSnapshot(msgspec.Struct):
    """The transfer of one snapshot to one peer. It stays with its snapshot even if a newer one is taken meanwhile."""

    snapshot: Snapshot
    offset: int = 0
    """The number of bytes that the receiver is known to hold."""
    awaiting: bool = False
    """Whether the chunk at `offset` is in flight."""
    asked: int = 0
    """Queries since the chunk was sent."""

    def on_reply(self, next_offset: int) -> None:
        """Record how many bytes the receiver holds."""
        if next_offset == self.offset and self.awaiting and self.asked < ASKED_BEFORE_AGAIN:
            return  # perhaps the answer to an earlier query
        self.offset = min(next_offset, len(self.snapshot.state))
        self.awaiting = False
        self.asked = 0

    def chunk(self, term: int, *, probe: bool) -> SnapshotChunk | None:
        """Return the next chunk to send, or (with `probe`) an empty one that asks for the receiver's offset, or
        None."""
        if self.awaiting and not probe:
            return None
        snapshot = self.snapshot
        self.asked = self.asked + 1 if self.awaiting else 0
        data = b"" if self.awaiting else snapshot.state[self.offset : self.offset + SNAPSHOT_CHUNK_BYTES]
        self.awaiting = True
        return SnapshotChunk(
            term=term,
            index=snapshot.index,
            last_term=snapshot.term,
            size=len(snapshot.state),
            crc=snapshot.crc,
            offset=self.offset,
            chunk_crc=crc32c(data),
            data=data,
            configuration=snapshot.configuration,
        )


class IncomingSnapshot(msgspec.Struct):
    """The part of a leader's snapshot that a peer has received."""

    _name: tuple[int, int, int, int] | None = None
    """(index, term, size, CRC) of the snapshot."""
    _held: bytearray = msgspec.field(default_factory=bytearray)

    def on_chunk(self, chunk: SnapshotChunk) -> Snapshot | None:
        """Add a chunk. Returns the snapshot when it is complete. Raises `RemoteProtocolError` for a damaged chunk."""
        if chunk.size > MAX_SNAPSHOT_BYTES:
            raise RemoteProtocolError(f"a snapshot of {chunk.size} bytes is too large")
        if crc32c(chunk.data) != chunk.chunk_crc:
            raise RemoteProtocolError("the checksum of a snapshot chunk is wrong")
        name = (chunk.index, chunk.last_term, chunk.size, chunk.crc)
        if name != self._name:
            self._name = name
            self._held = bytearray()
        if chunk.offset == len(self._held):
            self._held += chunk.data
        if len(self._held) < chunk.size:
            return None
        state = bytes(self._held)
        self.forget()
        if crc32c(state) != chunk.crc:
            # The transfer starts again: `held_bytes` is 0 now, and the answer says so.
            return None
        return Snapshot(chunk.index, chunk.last_term, state, chunk.crc, chunk.configuration)

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def forget(self) -> None:
        """Discard everything received."""
        self._name = None
        self._held = bytearray()
