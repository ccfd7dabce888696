"""What bounds a quorum node's memory and disk."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.config import MIB


@dataclass(frozen=True, slots=True)
class QuorumLimits:
    """What bounds memory and disk."""

    snapshot_entries: int = 10_000
    """A snapshot is taken after this many applied entries..."""
    snapshot_bytes: int = 16 * MIB
    """...or when the journal has this many bytes."""
    proposals_max: int = 10_000
    """Proposals of this node, or of a peer at this node, without an outcome; one more is refused."""
