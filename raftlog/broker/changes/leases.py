"""Leases of ranges of records for the API: which are free as this node knows, and proposals to the quorum."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from http_api.service.leases import Claim, HeldLease, LeaseName
from metadata.commands.leases import AcknowledgeLease, BeginLeases, LeaseChange, RenewLease, TakeLease
from metadata.view import ClusterView, LeasedPartition
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import TopicPartition
from raftlog.ports import Clock, Random
from raftlog.system.futures import future_of

from .groups import Groups
from .lease_ages import LeaseAges

_MOST_IDS = 2**62


class GroupLeases:
    """The implementation of `http_api.service.leases.LeaseService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        view: ClusterView,
        groups: Groups,
        catch_up: Callable[[], Awaitable[bool]],
        clock: Clock,
        random: Random,
    ) -> None:
        self._view = view
        self._groups = groups
        self._catch_up = catch_up
        self._clock = clock
        self._random = random
        self._ages = LeaseAges(clock, view.leases.records())
        view.subscribe(self._ages.on_events)

    def claims(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Claim]:
        group = self._view.groups.group(group_id)
        if group is not None and group.members:
            told = f"group {group_id!r} has members, who read its partitions: leases are for groups without"
            raise InvalidRequest("group_not_empty", told)
        offsets = self._view.groups.offsets(group_id)
        found: list[Claim] = []
        for partition in partitions:
            known = offsets.get(partition)
            committed = None if known is None else known.offset
            record = self._current(group_id, partition)
            if record is None:
                found.append(Claim(group_id, partition, committed))
                continue
            over = [
                Claim(group_id, partition, one.start, one.end, one.lease_id, one.deliveries + 1)
                for one in record.ranges
                if not self._ages.left_s(record, one)
            ]
            found += over or [Claim(group_id, partition, record.next_offset)]
        return found

    async def begin(self, group_id: str, partition: TopicPartition, offset: int, principal: str) -> None:
        now_ms = self._clock.wall_ms()
        await self._change(BeginLeases(partition.topic_id, partition.partition, group_id, offset, now_ms), principal)

    async def take(self, claim: Claim, start: int, end: int, lease_ms: int, principal: str) -> LeaseName:
        name = LeaseName(claim.partition, self._random.randrange(0, _MOST_IDS))
        tp, now_ms = claim.partition, self._clock.wall_ms()
        change = TakeLease(
            tp.topic_id, tp.partition, claim.group_id, name.lease_id, claim.replaces, start, end, lease_ms, now_ms
        )
        await self._change(change, principal)
        return name

    async def acknowledge(self, group_id: str, name: LeaseName, below: int | None, principal: str) -> int:
        if below is None:
            below = await self._end_of(group_id, name)
        tp = name.partition
        change = AcknowledgeLease(tp.topic_id, tp.partition, group_id, name.lease_id, below, self._clock.wall_ms())
        await self._change(change, principal)
        committed = self._view.groups.offsets(group_id).get(tp)
        return -1 if committed is None else committed.offset

    async def renew(self, group_id: str, name: LeaseName, lease_ms: int, principal: str) -> None:
        tp = name.partition
        await self._change(RenewLease(tp.topic_id, tp.partition, group_id, name.lease_id, lease_ms), principal)

    def of_group(self, group_id: str) -> list[HeldLease]:
        return [
            HeldLease(record, one, round(1000 * self._ages.left_s(record, one)))
            for _, record in sorted(self._view.leases.of_group(group_id).items())
            if self._current(group_id, record.partition) is not None
            for one in record.ranges
        ]

    def _current(self, group_id: str, partition: TopicPartition) -> LeasedPartition | None:
        """Return the leases of a partition, unless the group's offset was moved by something else meanwhile."""
        record = self._view.leases.of_partition(group_id, partition)
        known = self._view.groups.offsets(group_id).get(partition)
        return record if record is not None and known is not None and known.offset == record.committed else None

    async def _end_of(self, group_id: str, name: LeaseName) -> int:
        record = self._view.leases.of_partition(group_id, name.partition)
        if record is None or record.find(name.lease_id) is None:
            if not await self._catch_up():
                raise RetriableError("quorum_unavailable", "the lease is not known here, and the quorum is silent")
            record = self._view.leases.of_partition(group_id, name.partition)
        held = None if record is None else record.find(name.lease_id)
        if held is None:
            raise InvalidRequest("lease_lost", "the lease is over: its records are acknowledged, or another has them")
        return held.end

    async def _change(self, change: LeaseChange, principal: str) -> None:
        await future_of(partial(self._groups.change_lease, change, principal=principal))
