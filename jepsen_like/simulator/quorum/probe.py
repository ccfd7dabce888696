"""What the checkers look at inside a quorum node, in one place: no other file of the simulator knows these private
names.

Nothing here changes anything.
"""

from __future__ import annotations

from typing import NamedTuple

from jepsen_like.simulator.world.disk import SimDisk
from metadata.image.image import ClusterImage
from metadata.journal.journal import Journal
from metadata.quorum.node import QuorumNode
from metadata.voters.configuration import Configuration

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
"""pysyncobj's numbers for the states of a voter."""


class Mark(NamedTuple):
    """How a voter looks from inside between two events."""

    term: int
    vote: int | None
    leads: bool
    commit_index: int
    applied_index: int
    last_index: int
    last_term: int
    base_index: int
    dirty: bool
    """Something is staged that was not synced."""


def journal_of(node: QuorumNode) -> Journal:
    return node._engine._journal


def mark_of(node: QuorumNode) -> Mark:
    """Cheap: it is taken after every event."""
    engine = node._engine
    inside, journal = engine._core.__dict__, engine._journal
    entries = journal.entries
    _, last_index, last_term = entries[-1]
    held = (
        inside["_SyncObj__raftCurrentTerm"],
        inside["_SyncObj__votedForNodeId"],
        inside["_SyncObj__raftState"] == LEADER,
        inside["_SyncObj__raftCommitIndex"],
        inside["_SyncObj__raftLastApplied"],
        last_index,
        last_term,
        entries[0][1],
        bool(journal._staged),
    )
    return tuple.__new__(Mark, held)


def configuration_of(node: QuorumNode) -> Configuration:
    """The latest in its log."""
    return journal_of(node).configurations[-1][1]


def is_durable(node: QuorumNode, disk: SimDisk) -> bool:
    """Whether the whole journal would outlive a power loss, as the disk knows it and not as the journal believes."""
    journal = node._engine._journal
    return not journal.dirty and disk.is_durable(journal.path)


def image_of(node: QuorumNode) -> ClusterImage:
    return node.image


def check_inside(node: QuorumNode) -> None:
    """The engine's own invariants. Raises `InvariantViolation`."""
    node._engine.check_invariants()


def it_forgot(node: QuorumNode) -> bool:
    """It knows that it forgot what it had acknowledged."""
    return node._engine._forgotten.it_did


def waiting_in_lanes(node: QuorumNode) -> int:
    """Proposals handed to the engine whose proposer has not heard."""
    return len(node._lanes._waiting)


def snapshot_index(node: QuorumNode) -> int:
    """The last entry that the stored snapshot covers; 0 without one."""
    snapshot = node._engine._core.snapshot
    return 0 if snapshot is None else int(snapshot.index)
