"""Typed access to the group endpoints of the HTTP API.

A join is sent once, since every join is a new incarnation. Heartbeats and commits may be repeated: the cluster treats a
repeated commit as one, and never lowers an offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from raftlog.client.cluster.api import HttpApi

OFFSETS_PER_REQUEST = 1_000
CHANGE_TIMEOUT = 15.0
HEDGE_AFTER = 1.5
"""Seconds before another node is asked as well.

Many commits and heartbeats run at once, and commits wait for the quorum: if each were doubled as soon as it is late, a
cluster that is behind would fall back further.
"""


class GroupPartition(NamedTuple):
    """A partition as a group's members identify it.

    The same name with another id is another topic's partition.
    """

    topic: str
    partition: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class AssignedTopic(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    partitions: list[int]


class MembershipInfo(msgspec.Struct, frozen=True):
    """A member's state in its group."""

    member_id: str
    incarnation: int
    generation: int
    state: str
    assigned: list[AssignedTopic]
    revoking: list[AssignedTopic]


class GroupOffsetInfo(msgspec.Struct, frozen=True):
    """A group's committed offset in one partition, its lag and its owner."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None = None
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    lag: int | None = None
    member_id: str | None = None

    @property
    def group_partition(self) -> GroupPartition:
        return GroupPartition(self.topic, self.partition, self.topic_id)


class _Offsets(msgspec.Struct, frozen=True):
    offsets: list[GroupOffsetInfo]


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

    async def join(self, asked: Mapping[str, Any]) -> MembershipInfo:
        """Join the group. If it raises `outcome_unknown`, the answer was lost: join again with the same member id."""
        return await self._api.change(
            "POST", f"{self._path}/members", MembershipInfo, dict(asked), timeout=CHANGE_TIMEOUT
        )

    async def heartbeat(
        self, member_id: str, incarnation: int, generation: int, released: Iterable[GroupPartition], *, timeout: float
    ) -> MembershipInfo:
        by_topic: dict[str, list[int]] = {}
        for partition in released:
            by_topic.setdefault(partition.topic_id, []).append(partition.partition)
        body = {
            "incarnation": incarnation,
            "generation": generation,
            "released": [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_topic.items()],
        }
        path = f"{self._path}/members/{quote(member_id, safe='')}/heartbeat"
        return await self._api.post(path, MembershipInfo, body, timeout=timeout, hedge_after=HEDGE_AFTER)

    async def leave(self, member_id: str, incarnation: int, *, timeout: float) -> None:
        path = f"{self._path}/members/{quote(member_id, safe='')}?incarnation={incarnation}"
        await self._api.change("DELETE", path, None, timeout=timeout)

    async def member_of_instance(self, instance_id: str) -> str | None:
        """Return the id of the member that holds this static instance now."""
        described = await self._api.get(self._path, _Description)
        return next((m.member_id for m in described.members if m.instance_id == instance_id), None)

    async def committed(
        self, *, lag: bool = False, isolation: str = "read_committed", timeout: float = 10.0
    ) -> list[GroupOffsetInfo]:
        """Return the group's committed offsets and partition owners; linearizable (S7).

        `isolation`: the level for which the lag is computed.
        """
        path = f"{self._path}/offsets?lag={'true' if lag else 'false'}&isolation={isolation}"
        return (await self._api.get(path, _Offsets, timeout=timeout)).offsets

    async def commit(
        self,
        offsets: Mapping[GroupPartition, int],
        member_id: str = "",
        incarnation: int = 0,
        generation: int = 0,
        *,
        timeout: float = CHANGE_TIMEOUT,
    ) -> None:
        """Commit offsets. With more than `OFFSETS_PER_REQUEST` partitions, some may be committed when others fail."""
        packed: Sequence[dict[str, Any]] = [_to_commit(partition, offset) for partition, offset in offsets.items()]
        for first in range(0, len(packed), OFFSETS_PER_REQUEST):
            body = {
                "member_id": member_id,
                "incarnation": incarnation,
                "generation": generation,
                "offsets": packed[first : first + OFFSETS_PER_REQUEST],
            }
            await self._api.repeatable(
                "POST", f"{self._path}/offsets", body=body, timeout=timeout, hedge_after=HEDGE_AFTER
            )


class _Member(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str = ""


class _Description(msgspec.Struct, frozen=True):
    members: list[_Member]


def _to_commit(partition: GroupPartition, offset: int) -> dict[str, Any]:
    where = {"topic_id": partition.topic_id} if partition.topic_id else {"topic": partition.topic}
    return {**where, "partition": partition.partition, "offset": offset}
