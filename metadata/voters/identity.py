"""Who a quorum node is: what its journal, its handshakes and its snapshots are checked against."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.model import BrokerId, DirectoryId, Endpoint

FOLDER = "quorum"
"""Where journal and snapshot lie, below the data folder."""


@dataclass(frozen=True, slots=True)
class QuorumIdentity:
    """This node, as `raftlog server init` wrote it. `voters` are the initial ones: later ones are in the log."""

    cluster_id: str
    node_id: BrokerId
    directory_id: DirectoryId
    voters: tuple[BrokerId, ...]
    data: Endpoint | None = None
    """Where this node's data listener can be dialed, if that is known before it listens."""

    @property
    def peers(self) -> tuple[BrokerId, ...]:
        """The other initial voters, sorted."""
        return tuple(sorted(voter for voter in self.voters if voter != self.node_id))
