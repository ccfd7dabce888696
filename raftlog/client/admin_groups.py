"""`Admin` on consumer groups: list, describe, offsets with lag, seek with a plan, delete.

What is *not* here: being a member (`group_consumer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from .api import HttpApi
from .group_api import AssignedTopic, GroupApi, GroupOffsetInfo, group_path

SEEK_TIMEOUT = 60.0

MAX_PLANNED = 1_000
"""In one request."""

Isolation = Literal["read_committed", "read_uncommitted"]
SeekTo = Literal["earliest", "latest", "offset", "timestamp", "shift", "duration"]


class GroupSummary(msgspec.Struct, frozen=True):
    """One group in a list."""

    group: str
    state: str
    assignor: str
    member_count: int


class GroupMemberInfo(msgspec.Struct, frozen=True):
    """A member, what it may read, what it must give up, and what it is to have."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    incarnation: int
    generation: int
    topics: list[str]
    pattern: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assigned: list[AssignedTopic]
    revoking: list[AssignedTopic]
    target: list[AssignedTopic]


class GroupInfo(msgspec.Struct, frozen=True):
    """A group with its members."""

    group: str
    state: str
    assignor: str
    epoch: int
    target_epoch: int
    coordinator: int | None
    members: list[GroupMemberInfo]


class SoughtOffset(msgspec.Struct, frozen=True):
    """Where a group went on in a partition, and where it goes on now (or would)."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None
    new_offset: int
    log_start_offset: int
    log_end_offset: int


class _Groups(msgspec.Struct, frozen=True):
    groups: list[GroupSummary]


class _Sought(msgspec.Struct, frozen=True):
    offsets: list[SoughtOffset]


class AdminGroups:
    """The part of `Admin` that is about groups."""

    _api: HttpApi

    async def list_groups(self) -> list[GroupSummary]:
        """All groups, by name."""
        return (await self._api.get("/v1/groups", _Groups)).groups

    async def describe_group(self, group: str) -> GroupInfo:
        """Raises `InvalidRequest` (`unknown_group`)."""
        return await self._api.get(group_path(group), GroupInfo)

    async def group_offsets(self, group: str, isolation: Isolation = "read_committed") -> list[GroupOffsetInfo]:
        """What it has committed and what its members own, with lag: to the last stable offset or, with
        `read_uncommitted`, to the high watermark. Raises `InvalidRequest` (`unknown_group`)."""
        return await GroupApi(self._api, group).committed(lag=True, isolation=isolation)

    async def seek_group(
        self,
        group: str,
        to: SeekTo,
        value: int = 0,
        topics: Mapping[str, Sequence[int] | None] | None = None,
        *,
        plan: bool = False,
        isolation: Isolation = "read_committed",
    ) -> list[SoughtOffset]:
        """Have a group without members go on elsewhere, or with `plan` only say where that would be.

        `value`: the offset, milliseconds since 1970, offsets forward (or, negative, back), or milliseconds before now.
        `topics`: by name, with partitions or None for all; None: every partition in which it has committed. What lies
        outside a partition's log becomes its nearest end. `isolation`: what the group reads, and so where a partition
        ends for it.

        Raises `InvalidRequest` (`unknown_group`, `group_not_empty`, `unknown_topic`, `unknown_partition`).
        """
        body: dict[str, Any] = {"to": to, "value": value, "plan": plan, "isolation": isolation}
        if topics is not None:
            body["topics"] = [
                {"topic": topic, "partitions": None if numbers is None else list(numbers)}
                for topic, numbers in topics.items()
            ]
        answer = await self._api.change("POST", f"{group_path(group)}/seek", _Sought, body, timeout=SEEK_TIMEOUT)
        return answer.offsets

    async def seek_group_as_planned(
        self, group: str, planned: Sequence[SoughtOffset], isolation: Isolation = "read_committed"
    ) -> list[SoughtOffset]:
        """Do what `seek_group` with `plan` has said it would, if it still would.

        Raises `InvalidRequest`: `offset_moved` where the group has committed something else since, `group_not_empty`,
        `unknown_partition`, `offset_out_of_range`. A plan of more than 1,000 partitions is done in parts of so many, in
        order, and those before the one that was refused are done.
        """
        done: list[SoughtOffset] = []
        for first in range(0, len(planned), MAX_PLANNED):
            rows = [
                {
                    "topic": one.topic,
                    "topic_id": one.topic_id,
                    "partition": one.partition,
                    "offset": one.offset,
                    "new_offset": one.new_offset,
                }
                for one in planned[first : first + MAX_PLANNED]
            ]
            body = {"to": "planned", "planned": rows, "isolation": isolation}
            path = f"{group_path(group)}/seek"
            done += (await self._api.change("POST", path, _Sought, body, timeout=SEEK_TIMEOUT)).offsets
        return done

    async def delete_group(self, group: str) -> None:
        """With its offsets. Raises `InvalidRequest` (`unknown_group`, `group_not_empty`)."""
        await self._api.change("DELETE", group_path(group), None)
