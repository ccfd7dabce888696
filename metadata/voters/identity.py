"""The identity of a quorum node, against which its journal, handshakes and snapshots are checked."""

from __future__ import annotations

import msgspec

from raftlog.model import BrokerId, DirectoryId, Endpoint

FOLDER = "quorum"
"""The folder of journal and snapshot, relative to the data folder."""


class QuorumIdentity(msgspec.Struct, frozen=True):
    """This node's identity, as `raftlog server init` wrote it. `voters` are the initial ones; later ones are in the
    log."""

    cluster_id: str
    node_id: BrokerId
    directory_id: DirectoryId
    voters: tuple[BrokerId, ...]
    data: Endpoint | None = None
    """The address of this node's data listener, if it is known before the node listens."""

    @property
    def peers(self) -> tuple[BrokerId, ...]:
        """The other initial voters, sorted by node id."""
        return tuple(sorted(voter for voter in self.voters if voter != self.node_id))
