"""The requests of one group's member: on data connections, or by the HTTP API where those do not serve members.

The API serves instead if no data listener can be reached (a proxy, a firewall), if a node is of a version that does not
serve members on data connections, and for offsets in partitions of a topic that is known by its name alone.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from raftlog.api.groups import GroupOffsetInfo, GroupPartition, JoinGroup, MembershipInfo
from raftlog.client.cluster.api import CHANGE_TIMEOUT, READ_TIMEOUT, HttpApi
from raftlog.client.cluster.channel import NodeChannel
from raftlog.errors import InvalidRequest
from raftlog.wire import (
    GROUPS_PATH,
    CommitOffsetsRequest,
    GroupChangedResponse,
    GroupOffsetsRequest,
    GroupOffsetsResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    MembershipResponse,
    OffsetToCommit,
)

from .api import HEDGE_AFTER, GroupApi, released_topics

T = TypeVar("T")


class MemberCalls(GroupApi):
    """The calls of `GroupApi`, on a data connection if possible. Every call may raise a `RaftlogError`."""

    def __init__(self, api: HttpApi, group: str) -> None:
        super().__init__(api, group)
        self._channel = NodeChannel.of(api)
        self._group = group

    async def join(self, wanted: JoinGroup) -> MembershipInfo:
        request = JoinGroupRequest(
            0,
            self._group,
            wanted.member_id,
            wanted.instance_id,
            wanted.client_id,
            wanted.topics,
            wanted.pattern,
            wanted.assignor,
            wanted.session_timeout_ms,
            wanted.rebalance_timeout_ms,
        )
        asking = self._channel.once(GROUPS_PATH, request, MembershipResponse, timeout=CHANGE_TIMEOUT)
        told = await _if_served(asking)
        return await super().join(wanted) if told is None else MembershipInfo.of(self._group, wanted.member_id, told)

    async def heartbeat(
        self, member_id: str, incarnation: int, generation: int, released: Iterable[GroupPartition], *, timeout: float
    ) -> MembershipInfo:
        named = list(released)
        request = MemberHeartbeatRequest(0, self._group, member_id, incarnation, generation, released_topics(named))
        asking = self._channel.repeatable(
            GROUPS_PATH, request, MembershipResponse, timeout=timeout, hedge_after=HEDGE_AFTER
        )
        told = await _if_served(asking)
        if told is None:
            return await super().heartbeat(member_id, incarnation, generation, named, timeout=timeout)
        return MembershipInfo.of(self._group, member_id, told)

    async def leave(self, member_id: str, incarnation: int, *, timeout: float) -> None:
        request = LeaveGroupRequest(0, self._group, member_id, incarnation)
        asking = self._channel.once(GROUPS_PATH, request, GroupChangedResponse, timeout=timeout)
        if await _if_served(asking) is None:
            await super().leave(member_id, incarnation, timeout=timeout)

    async def committed(self, timeout: float = READ_TIMEOUT) -> list[GroupOffsetInfo]:
        """Return the group's committed offsets, without owners; linearizable (S7)."""
        asking = self._channel.repeatable(
            GROUPS_PATH, GroupOffsetsRequest(0, self._group), GroupOffsetsResponse, timeout=timeout
        )
        found = await _if_served(asking)
        if found is None:
            return await super().committed(timeout)
        return [
            GroupOffsetInfo(one.topic, one.topic_id.hex(), one.partition, one.offset, one.leader_epoch, one.metadata)
            for one in found.offsets
        ]

    async def commit_part(
        self, offsets: Sequence[tuple[GroupPartition, int]], member: tuple[str, int, int], timeout: float
    ) -> None:
        if all(one.topic_id for one, _ in offsets):
            packed = [OffsetToCommit(bytes.fromhex(one.topic_id), one.partition, offset) for one, offset in offsets]
            request = CommitOffsetsRequest(0, self._group, *member, packed)
            asking = self._channel.repeatable(
                GROUPS_PATH, request, GroupChangedResponse, timeout=timeout, hedge_after=HEDGE_AFTER
            )
            if await _if_served(asking) is not None:
                return
        await super().commit_part(offsets, member, timeout)


async def _if_served(asking: Coroutine[Any, Any, T]) -> T | None:
    """Return the answer, or None if the API has to serve the request, which had no effect."""
    try:
        return await asking
    except InvalidRequest as error:
        if error.code != "unsupported_version":
            raise
        return None
