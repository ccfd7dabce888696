"""Members of consumer groups for the workloads' clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from raftlog.client import Consumer, GroupConsumer, GroupPartition

SESSION_MS, HEARTBEAT_MS = 6_000, 500
"""Short, so that a dead member is detected within a run."""

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
    """Return a member that begins with the earliest records.

    `on_gone` is called for partitions that it gave up or lost. `options` are those of a `GroupConsumer`, whose errors
    are raised.
    """
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
