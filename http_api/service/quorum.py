"""The broker's port for the metadata quorum. `raftlog/broker/changes/quorum.py` implements it."""

from __future__ import annotations

from typing import Literal, Protocol

from raftlog.api.cluster import FeatureLevelFinalized
from raftlog.api.quorum import VotersChange
from raftlog.model import QuorumStatus


class QuorumService(Protocol):
    """The metadata quorum and the cluster's feature level."""

    async def status(self) -> QuorumStatus:
        """Return the status that the quorum's leader reports, or this node's own if the leader cannot be reached."""

    async def change_voters(self, action: Literal["add", "remove"], node_id: int, *, plan: bool) -> VotersChange:
        """Add a node to the voters of the metadata quorum, or remove one; with `plan` only describe the outcome.
        Returns when the voters after the change have agreed to it.

        Raises `InvalidRequest` (`not_a_voter`, `quorum_majority_at_risk`, `invalid_request`) or `RetriableError`
        (`voter_not_caught_up`, `quorum_change_in_progress`, `quorum_unavailable`, `outcome_unknown`).
        """

    async def finalize_feature_level(self, level: int | None, *, plan: bool) -> FeatureLevelFinalized:
        """Raise the cluster's feature level permanently, to the highest that every node understands if `level` is None;
        with `plan` only return the level.

        Raises `InvalidRequest` (`unsupported_version`) with the name of the node that is too old or absent, or
        `RetriableError` (`quorum_unavailable`, `outcome_unknown`).
        """
