"""The cluster's feature level, raised by an operator when an upgrade is to be final (as in Kafka, KIP-584).

A new cluster is born at the level of its first node. One that is upgraded node by node stays where it is: until its
level is raised the way back is open, since nothing was written that the version before cannot read. Afterwards no older
node can take part any more. So the level rises by an operator's word alone, and only when every node that the cluster
knows of is there with a version that understands it: registered brokers, voters, and connected observers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from metadata.commands.cluster import SetFeatureLevel
from metadata.view import ClusterView
from raftlog.errors import InvalidRequest
from raftlog.model import FeatureLevelChange, QuorumStatus

from .proposer import Proposer


def check_level(finalized: int, needed: int, what: str) -> None:
    """Whether something may be used. Raises `InvalidRequest` (`unsupported_version`) where the cluster's level is below
    the one from which all nodes know it."""
    if finalized < needed:
        raise InvalidRequest(
            "unsupported_version",
            f"{what} from feature level {needed} on, and the cluster is at {finalized}: once every node is upgraded, "
            "finalize the upgrade (raftlog cluster finalize)",
        )


async def finalize(
    view: ClusterView,
    proposer: Proposer,
    quorum_status: Callable[[], Awaitable[QuorumStatus]],
    level: int | None,
    *,
    plan: bool,
) -> FeatureLevelChange:
    """See `http_api.service.service.BrokerService.finalize_feature_level`."""
    await proposer.catch_up()
    status = await quorum_status()
    known = {broker.broker_id: broker.feature_level for broker in view.brokers()}
    absent = sorted({*status.voters, *status.match_index} - known.keys())
    if absent:
        raise InvalidRequest(
            "unsupported_version",
            f"node {absent[0]} is part of the quorum and not registered, so its version is not known: start it, or "
            f"remove it (raftlog quorum remove {absent[0]})",
        )
    before = view.feature_level
    highest = min(known.values(), default=view.feature_level)
    wanted = max(before, highest) if level is None else level
    if wanted < before:
        raise InvalidRequest("unsupported_version", f"the feature level is {before}, and never falls")
    if wanted > highest and wanted != before:
        behind = [broker_id for broker_id, understood in sorted(known.items()) if understood < wanted]
        raise InvalidRequest(
            "unsupported_version",
            f"broker {behind[0]} understands feature level {known[behind[0]]}, not {wanted}: upgrade it, or have it "
            f"forgotten (raftlog cluster unregister {behind[0]})",
        )
    if wanted != before and not plan:
        await proposer.decide(SetFeatureLevel(wanted))
    return FeatureLevelChange(before, wanted, not plan)
