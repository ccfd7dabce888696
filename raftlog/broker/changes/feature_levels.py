"""The cluster's feature level, which an operator raises to make an upgrade final (as in Kafka, KIP-584).

A new cluster has the level of its first node. During a rolling upgrade the level stays: until it is raised a downgrade
is possible, since nothing is written that the previous version cannot read. Afterwards older nodes cannot take part. So
only an operator raises the level, and only when every known node (registered brokers, voters and connected observers)
runs a version that supports it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from metadata.commands.cluster import SetFeatureLevel
from metadata.view import ClusterView
from raftlog.errors import InvalidRequest
from raftlog.model import FeatureLevelChange, QuorumStatus

from .proposer import Proposer


def check_level(finalized: int, needed: int, what: str) -> None:
    """Check that a feature may be used.

    Raises `InvalidRequest` (`unsupported_version`) if the cluster's level is below `needed`. `what` is a clause such as
    "there are groups".
    """
    if finalized < needed:
        raise InvalidRequest(
            "unsupported_version",
            f"{what} from feature level {needed} on, but the cluster is at {finalized}: when every node is upgraded, "
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
            f"node {absent[0]} is part of the quorum but not registered, so its version is unknown: start it, or "
            f"remove it (raftlog quorum remove {absent[0]})",
        )
    before = view.feature_level
    highest = min(known.values(), default=view.feature_level)
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
        await proposer.decide(SetFeatureLevel(wanted))
    return FeatureLevelChange(before, wanted, not plan)
