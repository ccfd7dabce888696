"""Members of consumer groups as the clients of workloads have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from raftlog.client import Consumer, GroupConsumer, GroupPartition

SESSION_MS, HEARTBEAT_MS = 6_000, 500
"""A member that died is found out within a run."""

OnPartitions: TypeAlias = Callable[[Iterable[GroupPartition]], None]


def subscribed(
    bootstrap: Sequence[str],
    group: str,
    topics: Sequence[str],
    *,
    on_assigned: OnPartitions,
    on_gone: OnPartitions,
    **options: Any,
) -> GroupConsumer:
    """A member that begins with the earliest records. `on_gone` hears of partitions that it gave up or lost. `options`
    are a `GroupConsumer`'s. Raises as that."""
    member: GroupConsumer = Consumer.subscribe(
        bootstrap,
        group,
        topics,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        on_assigned=on_assigned,
        on_revoked=on_gone,
        on_lost=on_gone,
        **options,
    )
    return member
