"""The broker's port for consumer groups.

`raftlog/broker/changes/groups.py` implements it. The state of groups is read from the view (`view.groups`), after
`catch_up` where the answer must be linearizable (S7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from raftlog.model import TopicPartition


@dataclass(frozen=True, slots=True)
class WantedMembership:
    """A consumer that asks to join."""

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
    """The next offset to read in one partition. A tuple, because there are ten thousand a second."""

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupService(Protocol):
    """When a call returns, its change is decided and visible in the view. Every call raises `InvalidRequest` if the
    change is refused, and `RetriableError` (`outcome_unknown`, `quorum_unavailable`, `overloaded`)."""

    async def join(self, wanted: WantedMembership) -> int:
        """Return the member's incarnation."""
        ...

    async def heartbeat(self, group_id: str, member_id: str, incarnation: int) -> None:
        """Renew the member's session with the coordinator. Raises `unknown_member`, `member_fenced`, or
        `not_coordinator` if no coordinator answers."""
        ...

    async def leave(self, group_id: str, member_id: str, incarnation: int) -> None: ...

    async def release(
        self, group_id: str, member_id: str, incarnation: int, generation: int, given_up: Sequence[TopicPartition]
    ) -> None: ...

    def commit(
        self, group_id: str, member_id: str, incarnation: int, generation: int, offsets: Sequence[WantedOffset]
    ) -> asyncio.Future[int]:
        """Commit all of these offsets or none; no offset is lowered. Without a member id the group must have no
        members. The commit completes even if the caller abandons the returned future."""
        ...

    async def reset(self, group_id: str, epoch: int, offsets: Sequence[WantedOffset], expected: Sequence[int]) -> None:
        """Set all of these offsets or none, lower or higher. The group must have no members and be at `epoch` (-1: must
        not exist), and its committed offset in each partition must equal `expected` (-1: none)."""
        ...

    async def delete(self, group_id: str) -> None: ...
