"""Typed access to the group endpoints of the HTTP API.

A join is sent once, since every join is a new incarnation. Heartbeats and commits may be repeated: the cluster treats a
repeated commit as one, and never lowers an offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from raftlog.api import groups
from raftlog.api.groups import (
    MAX_OFFSETS_PER_REQUEST,
    AssignedTopic,
    CommitOffsets,
    GroupInfo,
    GroupOffsetInfo,
    GroupOffsets,
    GroupPartition,
    Heartbeat,
    JoinGroup,
    MembershipInfo,
    OffsetToCommit,
)
from raftlog.client.cluster.api import CHANGE_TIMEOUT, READ_TIMEOUT, HttpApi, in_parts
from raftlog.wire import ReleasedTopic

HEDGE_AFTER = 1.5
"""Seconds before another node is asked as well.

Many commits and heartbeats run at once, and commits wait for the quorum: if each were doubled as soon as it is late, a
cluster that is behind would fall back further.
"""


def released_topics(partitions: Iterable[GroupPartition]) -> list[ReleasedTopic]:
    """Return released partitions as a heartbeat names them."""
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic_id, []).append(partition.partition)
    return [ReleasedTopic(bytes.fromhex(topic_id), numbers) for topic_id, numbers in by_topic.items()]


def unpack(assigned: Iterable[AssignedTopic]) -> list[GroupPartition]:
    """Return the partitions one by one."""
    return [GroupPartition(one.topic, number, one.topic_id) for one in assigned for number in one.partitions]


def group_path(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"


class GroupApi:
    """One group's endpoints. Every call may raise a `RaftlogError`."""

    def __init__(self, api: HttpApi, group: str) -> None:
        self._api = api
        self._path = group_path(group)

    async def join(self, wanted: JoinGroup) -> MembershipInfo:
        """Join the group. If it raises `outcome_unknown`, the answer was lost: join again with the same member id."""
        return await self._api.change("POST", f"{self._path}/members", MembershipInfo, wanted)

    async def heartbeat(
        self, member_id: str, incarnation: int, generation: int, released: Iterable[GroupPartition], *, timeout: float
    ) -> MembershipInfo:
        named = [groups.ReleasedTopic(one.topic_id.hex(), one.partitions) for one in released_topics(released)]
        body = Heartbeat(incarnation, generation, named)
        path = f"{self._path}/members/{quote(member_id, safe='')}/heartbeat"
        return await self._api.post(path, MembershipInfo, body, timeout=timeout, hedge_after=HEDGE_AFTER)

    async def leave(self, member_id: str, incarnation: int, *, timeout: float) -> None:
        path = f"{self._path}/members/{quote(member_id, safe='')}?incarnation={incarnation}"
        await self._api.change("DELETE", path, None, timeout=timeout)

    async def member_of_instance(self, instance_id: str) -> str | None:
        """Return the id of the member that holds this static instance now."""
        described = await self._api.get(self._path, GroupInfo)
        return next((m.member_id for m in described.members if m.instance_id == instance_id), None)

    async def committed(self, timeout: float = READ_TIMEOUT) -> list[GroupOffsetInfo]:
        """Return the group's committed offsets and partition owners; linearizable (S7)."""
        return (await self._api.get(f"{self._path}/offsets", GroupOffsets, timeout=timeout)).offsets

    async def commit(
        self,
        offsets: Mapping[GroupPartition, int],
        member_id: str = "",
        incarnation: int = 0,
        generation: int = 0,
        *,
        timeout: float = CHANGE_TIMEOUT,
    ) -> None:
        """Commit offsets. Of more than `MAX_OFFSETS_PER_REQUEST`, some may be committed when others fail."""
        for part in in_parts(list(offsets.items()), MAX_OFFSETS_PER_REQUEST):
            await self.commit_part(part, (member_id, incarnation, generation), timeout)

    async def commit_part(
        self, offsets: Sequence[tuple[GroupPartition, int]], member: tuple[str, int, int], timeout: float
    ) -> None:
        """Commit at most `MAX_OFFSETS_PER_REQUEST` offsets, all or none.

        `member`: its id, incarnation and generation.
        """
        packed = [
            OffsetToCommit(one.partition, offset, "" if one.topic_id else one.topic, one.topic_id or None)
            for one, offset in offsets
        ]
        path, body = f"{self._path}/offsets", CommitOffsets(packed, *member)
        await self._api.repeatable("POST", path, body=body, timeout=timeout, hedge_after=HEDGE_AFTER)
