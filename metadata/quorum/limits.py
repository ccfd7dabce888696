"""The bounds of a quorum node's memory and disk."""

from __future__ import annotations

import msgspec

from metadata.image.client_sessions import MAX_SPAN
from raftlog.config import MIB


class QuorumLimits(msgspec.Struct, frozen=True):
    """The bounds of memory and disk."""

    snapshot_entries: int = 10_000
    """Applied entries after which a snapshot is taken..."""
    snapshot_bytes: int = 16 * MIB
    """...or the size of the journal, in bytes, at which one is."""
    proposals_max: int = 10_000
    """The most undecided proposals of this node, or of one peer at this node; further ones are refused..."""
    proposals_bytes_max: int = 16 * MIB
    """...and so are those that would exceed this many bytes in total.

    A failover must not wait for clients: urgent proposals may exceed both limits by half.
    """
    forwarded_bytes_max: int = 256 * MIB
    """The most bytes of all peers' undecided proposals at this node."""
    span_max: int = MAX_SPAN
    """The most sequences of this node's session from the oldest undecided one to the newest: the number that the
    state machine can distinguish. Further ones are refused."""

    def have_room(self, count: int, size: int, *, urgent: bool) -> bool:
        """Return whether a node with `count` undecided proposals may add one that raises their total to `size`
        bytes."""
        share = 1.5 if urgent else 1.0
        return count < share * self.proposals_max and size <= share * self.proposals_bytes_max
