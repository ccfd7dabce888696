"""One node's view of membership: the latest configuration in its log, and the disks with which the others connected.

It answers three questions, for every message:

* *Does this node vote?* It campaigns only if the latest configuration in its own log names its node id with its
  directory id. It grants votes whatever its own log says (Raft dissertation, 4.2.2): a new voter may not have the
  entry yet that made it one, and a cluster that grows from one voter to two could otherwise lose its leader
  permanently.
* *Does a peer count?* Its votes and acknowledgements count only if the latest configuration here names it, with the
  disk with which it connected. An observer grants votes to any candidate, but its votes are not counted.
* *Is a candidate's request processed?* A voter that connects with another disk than the one it is named with may have
  been prepared again under its old id, and would campaign with half a memory: it gets no vote. Neither does a node
  that was removed and does not know it. But the candidate, or its new disk, may have been made a voter properly by an
  entry that has not arrived here. A candidate therefore sends the index at which its log names it, and if that is
  above the index of the configuration here, its request is processed. An honest node that lost its disk cannot send
  such an index: only a leader that an operator asked appends a configuration that names the new disk.

Before a leader has added the directory ids, the disk with which each voter was first met, durably remembered, takes
their place (`metadata/voters/directories.py`). Two voters that never met have no such memory of each other. A leader
therefore needs the votes of *all* voters as long as its log does not name their disks: whatever was agreed before,
one of the voters that keep it is asked. The first election is such a case, and the leader that it elects adds the
directory ids at once.
"""

from __future__ import annotations

from metadata.journal.journal import Journal
from metadata.voters.configuration import Configuration, Voter
from metadata.voters.identity import QuorumIdentity
from raftlog.config import majority
from raftlog.model import BrokerId, DirectoryId, Endpoint


class Membership:
    """The membership as one node knows it. The caller calls `refresh` after anything that may have changed the log."""

    def __init__(self, identity: QuorumIdentity, journal: Journal) -> None:
        self._identity = identity
        self._journal = journal
        self._met: dict[int, tuple[DirectoryId, Endpoint | None]] = {}
        self._unlike_first: set[int] = set()
        """Peers that connected with another disk than at their first meeting with this node."""
        self.index, self.configuration = journal.configurations[-1]

    def refresh(self) -> bool:
        """Adopt the log's latest configuration. Returns whether it changed."""
        latest = self._journal.configurations[-1]
        changed = latest != (self.index, self.configuration)
        self.index, self.configuration = latest
        return changed

    # --- This node ---

    @property
    def is_voter(self) -> bool:
        """Whether this node may campaign."""
        own = self.configuration.voter(self._identity.node_id)
        return own is not None and own.directory_id in (b"", self._identity.directory_id)

    @property
    def own_disk(self) -> bytes:
        """This node's directory id."""
        return bytes(self._identity.directory_id)

    @property
    def others(self) -> tuple[BrokerId, ...]:
        """The other voters, sorted."""
        return tuple(voter for voter in self.configuration.node_ids if voter != self._identity.node_id)

    @property
    def votes_needed(self) -> int:
        """The number of votes needed to lead.

        It is all of them until the log names the voters' disks. Otherwise a voter that was prepared again on an empty
        disk could form a majority with one that never met its former disk (S9).
        """
        voters = len(self.configuration.voters)
        return majority(voters) if self.configuration.is_pinned else voters

    @property
    def claim(self) -> int:
        """The index at which this node's log names it a voter on its disk, or 0 if it does not."""
        own = self.configuration.voter(self._identity.node_id)
        return self.index if own is not None and own.directory_id == self._identity.directory_id else 0

    # --- Peers ---

    def meet(self, peer: int, directory_id: DirectoryId, endpoint: Endpoint | None) -> bool:
        """Record that the peer connected with this disk. Returns whether it is another one than the last time."""
        known = self._met.get(peer)
        self._met[peer] = (directory_id, endpoint)
        return known is not None and known[0] != directory_id

    def distrust(self, peer: int, distrusted: bool) -> bool:
        """Set whether the peer connected with another disk than at its first meeting.

        Returns whether what it acknowledged must be forgotten; never if the log names its disk (`is_distrusted`).
        """
        changed = distrusted or peer in self._unlike_first
        (self._unlike_first.add if distrusted else self._unlike_first.discard)(peer)
        voter = self.configuration.voter(peer)
        return changed and voter is not None and not voter.pinned

    def forget(self, peer: int) -> bool:
        """Record that a peer is gone. Returns whether its disk was forgotten: a non-voter may return on another one."""
        if self.configuration.voter(peer) is not None:
            return False
        self._unlike_first.discard(peer)
        return self._met.pop(peer, None) is not None

    def is_distrusted(self, peer: int) -> bool:
        """Return whether the peer is a voter that is not on the disk that it votes with."""
        voter = self.configuration.voter(peer)
        if voter is None:
            return False
        if not voter.pinned:
            return peer in self._unlike_first
        met = self._met.get(peer)
        return met is not None and met[0] != voter.directory_id

    def counts(self, peer: int) -> bool:
        """Return whether the peer's votes and acknowledgements count."""
        return self.configuration.voter(peer) is not None and not self.is_distrusted(peer)

    def disk_of(self, peer: int) -> bytes:
        """Return the directory id with which the peer last connected; empty if it was never met."""
        met = self._met.get(peer)
        return bytes(met[0]) if met is not None else b""

    def as_voter(self, node_id: int) -> Voter | None:
        """Return the node with its present disk as a voter, or None if it was never met."""
        if node_id == self._identity.node_id:
            own = self.configuration.voter(node_id)
            endpoint = own.endpoint if own is not None else None
            return Voter.of(self._identity.node_id, self._identity.directory_id, self._identity.data or endpoint)
        met = self._met.get(node_id)
        return Voter.of(BrokerId(node_id), *met) if met is not None else None

    def pinned(self) -> Configuration:
        """Return the configuration with every directory id that can be vouched for."""
        candidates = (voter.node_id for voter in self.configuration.voters if not self.is_distrusted(voter.node_id))
        known = {node_id: voter for node_id in candidates if (voter := self.as_voter(node_id)) is not None}
        return self.configuration.pinned(known)

    @property
    def met(self) -> tuple[int, ...]:
        """The peers that are or were connected, sorted."""
        return tuple(sorted(self._met))
