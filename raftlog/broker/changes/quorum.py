"""The quorum for operators: its status, its voters, and the cluster's feature level (`feature_levels.py`)."""

from __future__ import annotations

from metadata.commands.cluster import SetFeatureLevel
from metadata.quorum.port import MetadataQuorum
from metadata.quorum.protocol import VotersChanged
from metadata.view import ClusterView
from metadata.voters.changes import Action, VoterChange
from raftlog.api.cluster import FeatureLevelFinalized
from raftlog.api.quorum import VotersChange
from raftlog.config import majority
from raftlog.errors import InvalidRequest, RetriableError, error_from_code
from raftlog.model import QuorumStatus
from raftlog.system.futures import answer_of

from .proposer import Proposer

TIMEOUT_SECONDS = 10.0


class QuorumAdministrator:
    """See `http_api.service.quorum.QuorumService`. All calls are made on the broker's loop."""

    def __init__(self, view: ClusterView, quorum: MetadataQuorum, proposer: Proposer) -> None:
        self._view = view
        self._quorum = quorum
        self._proposer = proposer

    async def status(self) -> QuorumStatus:
        return await answer_of(self._quorum.leader_status)

    async def change_voters(self, action: str, node_id: int, *, plan: bool) -> VotersChange:
        change = VoterChange(Action(action), node_id)
        answer: VotersChanged = await answer_of(
            lambda tell: self._quorum.change_voters(change, tell, plan=plan, timeout=TIMEOUT_SECONDS)
        )
        if answer.verdict not in ("applied", "planned"):
            # Retries leave no other verdicts here; a newer node may send one that is unknown to this version.
            if not answer.code:
                raise RetriableError("outcome_unknown", answer.detail or f"the quorum answered {answer.verdict!r}")
            raise error_from_code(answer.code, answer.detail)
        before, after = (len(voters) - majority(len(voters)) for voters in (answer.before, answer.after))
        index = answer.index if answer.index >= 0 else None
        applied = answer.verdict == "applied"
        return VotersChange(applied, list(answer.before), list(answer.after), before, after, index)

    async def finalize_feature_level(self, level: int | None, *, plan: bool) -> FeatureLevelFinalized:
        await self._proposer.catch_up()
        status = await self.status()
        known = {broker.broker_id: broker.feature_level for broker in self._view.brokers()}
        absent = sorted({*status.voters, *status.match_index} - known.keys())
        if absent:
            raise InvalidRequest(
                "unsupported_version",
                f"node {absent[0]} is part of the quorum but not registered, so its version is unknown: start it, or "
                f"remove it (raftlog quorum remove {absent[0]})",
            )
        before = self._view.feature_level
        highest = min(known.values(), default=self._view.feature_level)
        wanted = max(before, highest) if level is None else level
        if wanted < before:
            raise InvalidRequest("unsupported_version", f"the feature level is {before} and cannot be lowered")
        if wanted > highest and wanted != before:
            behind = [broker_id for broker_id, understood in sorted(known.items()) if understood < wanted]
            raise InvalidRequest(
                "unsupported_version",
                f"broker {behind[0]} supports feature level {known[behind[0]]}, not {wanted}: upgrade it, or "
                f"unregister it (raftlog cluster unregister {behind[0]})",
            )
        if wanted != before and not plan:
            await self._proposer.decide(SetFeatureLevel(wanted))
        return FeatureLevelFinalized(not plan, before, wanted)
