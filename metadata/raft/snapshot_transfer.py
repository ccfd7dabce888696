"""A snapshot on its way from the leader to a voter whose log is too short: bounded chunks, one at a time.

The leader sends a chunk and waits for the answer, which names how many bytes the receiver holds; the next chunk begins
there. So whatever is lost, delayed or delivered twice, the transfer continues from what the receiver really has. A
chunk that does not continue what is held is answered and otherwise ignored.

While no answer comes, heartbeats ask how much is held. Each such question is answered too, so an answer without
progress sends the chunk again only after several questions: otherwise every heartbeat of a long transfer would add
another copy of the whole of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crc32c import crc32c

from metadata.journal.snapshot_file import MAX_SNAPSHOT_BYTES, Snapshot
from raftlog.errors import RemoteProtocolError

from .messages import SNAPSHOT_CHUNK_BYTES, SnapshotChunk

ASKED_BEFORE_AGAIN = 3
"""Questions without progress after which a chunk is taken for lost, which a link that stays open does not do."""


@dataclass(slots=True)
class OutgoingSnapshot:
    """A transfer to one voter. It keeps to the snapshot it began with, even when a newer one is taken meanwhile."""

    snapshot: Snapshot
    offset: int = 0
    """How many bytes the receiver holds, as far as known."""
    awaiting: bool = False
    """The chunk at `offset` is on its way."""
    asked: int = 0
    """Questions since it left."""

    def on_reply(self, next_offset: int) -> None:
        """The receiver holds this much."""
        if next_offset == self.offset and self.awaiting and self.asked < ASKED_BEFORE_AGAIN:
            return  # perhaps the answer to an earlier question
        self.offset = min(next_offset, len(self.snapshot.state))
        self.awaiting = False
        self.asked = 0

    def chunk(self, term: int, *, probe: bool) -> SnapshotChunk | None:
        """What to send now: the next chunk, or (when `probe`) an empty one that asks for the receiver's offset."""
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


@dataclass(slots=True)
class IncomingSnapshot:
    """What a voter holds of a snapshot that the leader sends."""

    _name: tuple[int, int, int, int] | None = None
    """(index, term, size, CRC) of the snapshot."""
    _held: bytearray = field(default_factory=bytearray)

    def on_chunk(self, chunk: SnapshotChunk) -> Snapshot | None:
        """Take a chunk. Returns the snapshot when it is whole. Raises `RemoteProtocolError` for a damaged chunk."""
        if chunk.size > MAX_SNAPSHOT_BYTES:
            raise RemoteProtocolError(f"a snapshot of {chunk.size} bytes is too large")
        if crc32c(chunk.data) != chunk.chunk_crc:
            raise RemoteProtocolError("a snapshot's chunk has a wrong checksum")
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
            # Begin again: `held_bytes` is 0 now, and the answer says so.
            return None
        return Snapshot(chunk.index, chunk.last_term, state, chunk.crc, chunk.configuration)

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def forget(self) -> None:
        """Nothing is held."""
        self._name = None
        self._held = bytearray()
