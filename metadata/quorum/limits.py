"""What bounds a quorum node's memory and disk."""

from __future__ import annotations

from dataclasses import dataclass

from metadata.image.client_sessions import MAX_SPAN
from raftlog.config import MIB


@dataclass(frozen=True, slots=True)
class QuorumLimits:
    """What bounds memory and disk."""

    snapshot_entries: int = 10_000
    """A snapshot is taken after this many applied entries..."""
    snapshot_bytes: int = 16 * MIB
    """...or when the journal has this many bytes."""
    proposals_max: int = 10_000
    """Proposals of this node, or of a peer at this node, without an outcome; one more is refused..."""
    proposals_bytes_max: int = 16 * MIB
    """...as is one with which they would have more bytes than this. A failover must not wait until clients are content:
    urgent proposals may be half as many again, in number and bytes."""
    forwarded_bytes_max: int = 256 * MIB
    """Of all peers' proposals at this node."""
    span_max: int = MAX_SPAN
    """Sequences of this node's session, from the oldest without an outcome to the newest: what the state machine tells
    apart. One more is refused."""

    def have_room(self, count: int, size: int, *, urgent: bool) -> bool:
        """Whether a node that has `count` proposals without an outcome may have another, with which they are `size`
        bytes."""
        share = 1.5 if urgent else 1.0
        return count < share * self.proposals_max and size <= share * self.proposals_bytes_max
