"""What the HTTP API asks of the broker about consumer groups.

`raftlog/broker/changes/groups.py` is the real one. What groups *are* is read from the view (`view.groups`), after
`catch_up` where it must be what the quorum has decided by now (S7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from raftlog.model import TopicPartition


@dataclass(frozen=True, slots=True)
class WantedMembership:
    """A consumer that joins."""

    group_id: str
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    assignor: str
    session_timeout_ms: int
    rebalance_timeout_ms: int


class WantedOffset(NamedTuple):
    """Where to go on in one partition. A tuple: there are ten thousand a second."""

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupService(Protocol):
    """Changes are decided when a call returns, and the view shows them. All raise `InvalidRequest` for what is refused
    and `RetriableError` (`outcome_unknown`, `quorum_unavailable`, `overloaded`)."""

    async def join(self, wanted: WantedMembership) -> int:
        """The member's incarnation."""
        ...

    async def heartbeat(self, group_id: str, member_id: str, incarnation: int) -> None:
        """The coordinator has heard of the member. Raises `unknown_member`, `member_fenced`, or `not_coordinator` where
        none answers."""
        ...

    async def leave(self, group_id: str, member_id: str, incarnation: int) -> None: ...

    async def release(
        self, group_id: str, member_id: str, incarnation: int, generation: int, given_up: Sequence[TopicPartition]
    ) -> None: ...

    def commit(
        self, group_id: str, member_id: str, incarnation: int, generation: int, offsets: Sequence[WantedOffset]
    ) -> asyncio.Future[int]:
        """All of them or none; lowers nothing. With no member id: for a group that has no members. It goes on to its
        end when the call has returned, whether or not somebody waits for the future, which may be settled by others."""
        ...

    async def reset(self, group_id: str, epoch: int, offsets: Sequence[WantedOffset], expected: Sequence[int]) -> None:
        """All of them or none; lower or higher. The group must have no members, be at `epoch` (-1: not be), and have
        committed just what is `expected` in each of these partitions (-1: nothing)."""
        ...

    async def delete(self, group_id: str) -> None: ...
