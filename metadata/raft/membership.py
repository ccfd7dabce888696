"""What one node knows of membership: the latest configuration in its log, and the disks that the others came with.

Three questions, asked at every message:

* *Does this node vote?* It campaigns only if the latest configuration in its own log names its node id with its
  directory id. It grants votes whatever its own log says (Raft dissertation, 4.2.2): a new voter may not have the entry
  yet that made it one, and a cluster that grows from one voter to two could otherwise lose its leader for good.
* *Does a peer count?* Its votes and acknowledgements count only if the latest configuration here names it, with the
  disk that it came with. So an observer, which votes for whoever asks, is counted by nobody.
* *Is a candidate heard?* A voter that comes with another disk than it is named with may have been prepared again under
  its old name, and would campaign with half a memory: it gets no vote. Nor does a node that was removed and does not
  know it. But it may be that the candidate, or its new disk, was made a voter properly and this node has not heard of
  it yet. A candidate therefore says at which index its log names it; one above the configuration here is heard. An
  honest node that lost its disk cannot say so: nobody appends a configuration that names the new disk, but a leader
  whom an operator asked to.

Before a leader has written the directory ids down, the disk that each voter was met with first, durably remembered,
takes their place (`metadata/voters/directories.py`). Two voters that never met have no such memory of one another. So a
leader needs the votes of *all* voters as long as its log does not name their disks: whatever was agreed to before, one
of the voters that keeps it is asked. The first election is such a one, and the leader that it makes writes the disks
down at once.
"""

from __future__ import annotations

from metadata.journal.journal import Journal
from metadata.voters.configuration import Configuration, Voter
from metadata.voters.identity import QuorumIdentity
from raftlog.config import majority
from raftlog.model import BrokerId, DirectoryId, Endpoint


class Membership:
    """One node's. `refresh` after whatever may have changed the log."""

    def __init__(self, identity: QuorumIdentity, journal: Journal) -> None:
        self._identity = identity
        self._journal = journal
        self._met: dict[int, tuple[DirectoryId, Endpoint | None]] = {}
        self._unlike_first: set[int] = set()
        """Peers that came with another disk than when this node met them first."""
        self.index, self.configuration = journal.configurations[-1]

    def refresh(self) -> bool:
        """Take the log's latest configuration. Returns whether it is another."""
        latest = self._journal.configurations[-1]
        changed = latest != (self.index, self.configuration)
        self.index, self.configuration = latest
        return changed

    # --- This node ---

    @property
    def is_voter(self) -> bool:
        """It may campaign."""
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
        """To lead. All of them until the log says with which disks they vote: without that, one that was prepared anew
        on an empty disk could make a majority with one that never met its former disk (S9)."""
        voters = len(self.configuration.voters)
        return majority(voters) if self.configuration.is_pinned else voters

    @property
    def claim(self) -> int:
        """The index at which this node's log names it a voter by its disk; 0 where it does not."""
        own = self.configuration.voter(self._identity.node_id)
        return self.index if own is not None and own.directory_id == self._identity.directory_id else 0

    # --- Peers ---

    def meet(self, peer: int, directory_id: DirectoryId, endpoint: Endpoint | None) -> bool:
        """The peer is there, with this disk. Returns whether that is another one than it came with last."""
        known = self._met.get(peer)
        self._met[peer] = (directory_id, endpoint)
        return known is not None and known[0] != directory_id

    def distrust(self, peer: int, distrusted: bool) -> bool:
        """Whether the peer came with another disk than when it was first met. Returns whether to begin anew with it:
        not where the log names its disk (`is_distrusted`)."""
        changed = distrusted or peer in self._unlike_first
        (self._unlike_first.add if distrusted else self._unlike_first.discard)(peer)
        voter = self.configuration.voter(peer)
        return changed and voter is not None and not voter.pinned

    def forget(self, peer: int) -> bool:
        """A peer is gone. Returns whether its disk was forgotten: it is no voter, and may come back on another one."""
        if self.configuration.voter(peer) is not None:
            return False
        self._unlike_first.discard(peer)
        return self._met.pop(peer, None) is not None

    def is_distrusted(self, peer: int) -> bool:
        """A voter that did not come with the disk that it votes with."""
        voter = self.configuration.voter(peer)
        if voter is None:
            return False
        if not voter.pinned:
            return peer in self._unlike_first
        met = self._met.get(peer)
        return met is not None and met[0] != voter.directory_id

    def counts(self, peer: int) -> bool:
        """Its votes and acknowledgements do."""
        return self.configuration.voter(peer) is not None and not self.is_distrusted(peer)

    def disk_of(self, peer: int) -> bytes:
        """The directory id that the peer came with last; empty where it was not met."""
        met = self._met.get(peer)
        return bytes(met[0]) if met is not None else b""

    def as_voter(self, node_id: int) -> Voter | None:
        """The node with the disk that it is here with; None for one that was not met."""
        if node_id == self._identity.node_id:
            own = self.configuration.voter(node_id)
            endpoint = own.endpoint if own is not None else None
            return Voter.of(self._identity.node_id, self._identity.directory_id, self._identity.data or endpoint)
        met = self._met.get(node_id)
        return Voter.of(BrokerId(node_id), *met) if met is not None else None

    def pinned(self) -> Configuration:
        """The configuration with every disk that can be vouched for."""
        candidates = (voter.node_id for voter in self.configuration.voters if not self.is_distrusted(voter.node_id))
        known = {node_id: voter for node_id in candidates if (voter := self.as_voter(node_id)) is not None}
        return self.configuration.pinned(known)

    @property
    def met(self) -> tuple[int, ...]:
        """Who is or was here, sorted."""
        return tuple(sorted(self._met))
