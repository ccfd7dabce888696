"""The cluster's feature level, which an operator raises to make an upgrade final (as in Kafka, KIP-584).

A new cluster has the level of its first node. During a rolling upgrade the level stays: until it is raised a downgrade
is possible, since nothing is written that the previous version cannot read. Afterwards older nodes cannot take part. So
only an operator raises the level, and only when every known node (registered brokers, voters and connected observers)
runs a version that supports it.
"""

from __future__ import annotations

from raftlog.errors import InvalidRequest


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
