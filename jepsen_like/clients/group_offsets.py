"""The client of `group-offsets`: members of a group that poll, commit and read committed offsets, and two groups
without members.

A member commits only keys that it owns by its own knowledge. Its `poll` reports the keys assigned to it. Keys of the
group without members begin with `lone:`; every process commits them, as consumers do that assign partitions to
themselves. In the third group, with `sought:` keys, no process commits: its offsets are only reset, unconditionally or
if they still have the planned value.

A commit may be sent several times before its answer arrives, and the refusal of a later attempt does not undo an
earlier one: so the outcome of a commit that is not acknowledged is unknown (`info`).

A late commit (marked by the hint) is held back until the partition belongs to this member again, before its program
learns that, and carries the membership under which the member last owned it. If the partition does not come back,
nothing is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

from raftlog.api.groups import SoughtOffset
from raftlog.client import Admin, GroupConsumer, GroupPartition
from raftlog.client.cluster.api import HttpApi
from raftlog.client.groups.api import GroupApi
from raftlog.errors import RaftlogError

from .log import split
from .members import subscribed
from .messages import CertainlyNot, OutcomeUnknown, Told, option
from .process import ClientSettings

LONE = "lone:"
"""Prefix of the keys of the group without members."""
SOUGHT = "sought:"
"""Prefix of the keys of the group whose offsets are reset. No process commits there: a late duplicate of a commit may
be applied long after its answer, and would undo a reset.
"""
POLL_SECONDS = 0.2
POLL_RECORDS = 20
LATE_EVERY = 0.1
LATE_SECONDS = 3.0
"""Time for which a late commit waits for its partition to come back."""

Member = tuple[str, int, int]
"""Member id, incarnation and generation."""


class GroupOffsetsClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._bootstrap = list(settings.bootstrap)
        self._timeout = settings.timeout
        self._topics = sorted(settings.options["topics"])
        self._group = f"group-{settings.options['tag']}"
        self._api = HttpApi(self._bootstrap)
        names = {"": self._group, LONE: f"lone-{self._group}", SOUGHT: f"sought-{self._group}"}
        self._groups = {prefix: GroupApi(self._api, name) for prefix, name in names.items()}
        self._sought = names[SOUGHT]
        self._admin: Admin | None = None
        self._member: GroupConsumer | None = None
        self._assigned: list[str] = []
        self._gone: list[str] = []
        self._late = bool(option(settings.options, "late_every", 0))
        self._was: dict[str, Member] = {}
        """Key → the membership under which the member last owned it; used for late commits only."""

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        match f:
            case "poll":
                return await self._poll()
            case "commit":
                return await (self._commit_late(*value) if hint.get("late") else self._commit(*value))
            case "reset" | "cas":
                return await self._reset(*value)
            case "read":
                return Told("ok", [value[0], await self._read(value[0])])
            case "leave":
                await self._leave()
                return Told("ok")
        raise ValueError(f"group-offsets has no operation {f}")

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._api.close)
            if self._admin is not None:
                stack.push_async_callback(self._admin.close)
            if self._member is not None:
                stack.push_async_callback(self._member.close, processed=False)

    async def _poll(self) -> Told:
        """Poll, and report the assigned and revoked keys in any case: they have changed even if the poll fails."""
        if self._member is None:
            self._member = subscribed(
                self._bootstrap,
                self._group,
                self._topics,
                enable_auto_commit=False,
                on_assigned=self._on_assigned,
                on_gone=self._on_gone,
            )
        error = ""
        try:
            await self._member.poll(POLL_RECORDS, timeout=POLL_SECONDS)
        except RaftlogError as failed:
            error = str(failed)
        owned = [_key(one) for one in self._member.assignment]
        if self._late:
            self._was.update(dict.fromkeys(owned, await self._who(self._member)))
        told = {"owned": owned, "assigned": self._assigned, "gone": self._gone}
        self._assigned, self._gone = [], []
        return Told("fail" if error else "ok", told, error or None)

    async def _commit(self, key: str, offset: int) -> Told:
        group, place = _apart(key)
        try:
            if group == LONE:
                topic, partition = split(place)
                await self._groups[LONE].commit({GroupPartition(topic, partition): offset}, timeout=self._timeout)
            else:
                await self._commit_own(place, offset)
        except RaftlogError as error:
            raise OutcomeUnknown(str(error)) from None
        return Told("ok", [key, offset])

    async def _commit_own(self, key: str, offset: int) -> None:
        member = self._member
        own = [] if member is None else [one for one in member.assignment if _key(one) == key]
        if member is None or not own:
            raise CertainlyNot("the member does not own the partition")
        await member.commit({own[0]: offset}, timeout=self._timeout)

    async def _who(self, member: GroupConsumer) -> Member:
        """Return the membership, as a transaction would name it."""
        try:
            told = member.consumed()
        except RaftlogError:
            # The member lost partitions that it had read: continue from the committed offsets, or join first.
            with suppress(RaftlogError):
                await member.seek_to_committed()
                told = member.consumed()
                return told.member_id, told.incarnation, told.generation
            return "", 0, 0
        return told.member_id, told.incarnation, told.generation

    async def _commit_late(self, key: str, offset: int) -> Told:
        topic, partition = split(key)
        member_id, incarnation, generation = self._was.get(key, ("", 0, 0))
        if not member_id or not await self._comes_back(key, member_id):
            raise CertainlyNot("the partition did not come back to this member")
        try:
            where = {GroupPartition(topic, partition): offset}
            await self._groups[""].commit(where, member_id, incarnation, generation, timeout=self._timeout)
        except RaftlogError as error:
            raise OutcomeUnknown(str(error)) from None
        return Told("ok", [key, offset])

    async def _comes_back(self, key: str, member_id: str) -> bool:
        """Return whether the partition belongs to this member again within the time limit."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LATE_SECONDS
        while loop.time() < deadline:
            with suppress(RaftlogError):
                told = await self._groups[""].committed(timeout=LATE_SECONDS)
                if any(_key(one.group_partition) == key and one.member_id == member_id for one in told):
                    return True
            await asyncio.sleep(LATE_EVERY)
        return False

    async def _read(self, key: str) -> int | None:
        """Read the committed offset through the quorum's log (S7). A group without commits does not exist."""
        group, place = _apart(key)
        try:
            committed = await self._groups[group].committed(timeout=self._timeout)
        except RaftlogError as error:
            if error.code == "unknown_group":
                return None
            raise CertainlyNot(str(error)) from None
        return next((one.offset for one in committed if _key(one.group_partition) == place), None)

    async def _reset(self, key: str, wanted: int | list[int | None]) -> Told:
        """Reset the offset unconditionally, or from an expected one (nil: never committed) to a new one."""
        topic, partition = split(key.removeprefix(SOUGHT))
        self._admin = self._admin or Admin(self._bootstrap)
        if isinstance(wanted, int):
            await self._admin.seek_group(self._sought, "offset", wanted, {topic: [partition]})
            return Told("ok", [key, wanted])
        old, new = wanted
        assert new is not None
        topic_id = (await self._admin.describe_topic(topic)).id
        await self._admin.seek_group_as_planned(
            self._sought, [SoughtOffset(topic, topic_id, partition, old, new, 0, new)]
        )
        return Told("ok", [key, wanted])

    async def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            await member.close(processed=False)

    def _on_assigned(self, partitions: Iterable[GroupPartition]) -> None:
        self._assigned += [_key(one) for one in partitions]

    def _on_gone(self, partitions: Iterable[GroupPartition]) -> None:
        self._gone += [_key(one) for one in partitions]


def _apart(key: str) -> tuple[str, str]:
    """Split a key into the group's prefix and the place."""
    prefix = next((prefix for prefix in (LONE, SOUGHT) if key.startswith(prefix)), "")
    return prefix, key.removeprefix(prefix)


def _key(partition: GroupPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
