"""The effects of changes on leases. Deterministic and total.

A range is handed out once for each lease, and goes on only if its lease id is replaced; so of all holders one can
acknowledge, and the committed offset moves behind a record only after its last holder has acknowledged it. Nothing is
skipped, whatever any clock says (S8). A group that has members is theirs: no lease is taken or acknowledged.
"""

from __future__ import annotations

import msgspec

from metadata.commands.leases import (
    MAX_LEASED_PARTITIONS,
    MAX_RANGES,
    AcknowledgeLease,
    BeginLeases,
    LeaseChange,
    RenewLease,
    TakeLease,
)
from metadata.commands.results import Refused
from metadata.records.groups import CommittedOffset
from metadata.records.leases import NO_LEASE, LeasedPartition, LeasedRange
from metadata.records.owners import NO_OWNER
from raftlog.model import Offset, TopicId, TopicPartition

from .groups import have_group, refuse_new_offsets
from .image import ClusterImage
from .shares import SHARES


def change_lease(state: ClusterImage, change: LeaseChange, index: int, principal: str) -> Refused | None:
    """Apply one change."""
    group = state.groups.by_id.get(change.group_id)
    if group is not None and group.members:
        told = f"group {change.group_id!r} has members, who read its partitions: leases are for groups without"
        return Refused("group_not_empty", told)
    match change:
        case BeginLeases():
            return _begin(state, change, index, principal)
        case TakeLease():
            return _take(state, change, index, principal)
        case AcknowledgeLease():
            return _acknowledge(state, change)
        case RenewLease():
            return _renew(state, change, index)


def forget_leases_of(state: ClusterImage, topic_id: TopicId) -> None:
    """Remove the leases of a deleted topic."""
    for record in list(state.leases.records()):
        if record.partition.topic_id == topic_id:
            state.leases.remove(record)


def _begin(state: ClusterImage, change: BeginLeases, index: int, principal: str) -> Refused | None:
    partition = change.topic_partition
    refused = refuse_new_offsets(state, change.group_id, [partition], principal)
    if refused is None and _committed(state, change.group_id, partition) is None:
        have_group(state, change.group_id, index, principal)
        _commit(state, change.group_id, partition, change.offset, change.now_ms)
    return refused


def _take(state: ClusterImage, take: TakeLease, index: int, principal: str) -> Refused | None:
    partition, lease = take.topic_partition, (take.start, take.end)
    if take.start >= take.end:
        return Refused("invalid_request", f"[{take.start}, {take.end}) has no records")
    refused = refuse_new_offsets(state, take.group_id, [partition], principal)
    if refused is not None:
        return refused
    record = _current(state, take.group_id, partition)
    committed = _committed(state, take.group_id, partition)
    if record is None:
        start = take.start if committed is None else committed
        if take.replaces != NO_LEASE or take.start != start:
            return _moved(take)
        refused = _no_room(state, principal)
        if refused is not None:
            return refused
        record = LeasedPartition(take.group_id, partition, start, start, (), principal)
    elif record.find(take.lease_id) is not None:
        return Refused("invalid_request", "the lease id is in use")
    ranges = list(record.ranges)
    taken = LeasedRange(*lease, take.lease_id, take.lease_ms, index)
    if take.replaces == NO_LEASE:
        if take.start != record.next_offset:
            return _moved(take)
        ranges.append(taken)
    else:
        place = next((at for at, one in enumerate(ranges) if one.lease_id == take.replaces), None)
        if place is None or ranges[place].start != take.start or ranges[place].end < take.end:
            return _moved(take)
        over = ranges[place]
        taken = msgspec.structs.replace(taken, deliveries=over.deliveries + 1)
        # The rest of the range stays with the lease that is over.
        rest = [msgspec.structs.replace(over, start=take.end)] if take.end < over.end else []
        ranges[place : place + 1] = [taken, *rest]
    if len(ranges) > MAX_RANGES:
        told = f"group {take.group_id!r} has {MAX_RANGES} leases in this partition that are not acknowledged, the most"
        return Refused("overloaded", told)
    if committed is None:
        have_group(state, take.group_id, index, principal)
        _commit(state, take.group_id, partition, take.start, take.now_ms)
    next_offset = max(record.next_offset, take.end)
    state.leases.put(msgspec.structs.replace(record, next_offset=next_offset, ranges=tuple(ranges)))
    return None


def _acknowledge(state: ClusterImage, change: AcknowledgeLease) -> Refused | None:
    found = _held(state, change)
    if isinstance(found, Refused):
        return found
    record, held = found
    if not held.start <= change.below <= held.end:
        told = (
            f"the lease has the offsets {held.start} to {held.end - 1}, and nothing below {change.below} to acknowledge"
        )
        return Refused("offset_out_of_range", told)
    rest = () if change.below == held.end else (msgspec.structs.replace(held, start=change.below),)
    ranges = tuple(kept for one in record.ranges for kept in (rest if one is held else (one,)))
    committed = ranges[0].start if ranges else record.next_offset
    # First the leases, then the offset: a commit that is not theirs ends them.
    if ranges:
        state.leases.put(msgspec.structs.replace(record, committed=committed, ranges=ranges))
    else:
        state.leases.remove(record)
    if committed != record.committed:
        _commit(state, change.group_id, record.partition, committed, change.now_ms)
    return None


def _renew(state: ClusterImage, change: RenewLease, index: int) -> Refused | None:
    found = _held(state, change)
    if isinstance(found, Refused):
        return found
    record, held = found
    renewed = msgspec.structs.replace(held, lease_ms=change.lease_ms, renewed=index)
    ranges = tuple(renewed if one is held else one for one in record.ranges)
    state.leases.put(msgspec.structs.replace(record, ranges=ranges))
    return None


def _current(state: ClusterImage, group_id: str, partition: TopicPartition) -> LeasedPartition | None:
    """Return the leases of a partition, unless the committed offset was moved by something else: then they count no
    more."""
    record = state.leases.of_partition(group_id, partition)
    if record is None or record.committed != _committed(state, group_id, partition):
        return None
    return record


def _committed(state: ClusterImage, group_id: str, partition: TopicPartition) -> int | None:
    if group_id not in state.groups.by_id:
        return None
    known = state.groups.offsets_of(group_id).get(partition)
    return None if known is None else known.offset


def _held(state: ClusterImage, change: AcknowledgeLease | RenewLease) -> tuple[LeasedPartition, LeasedRange] | Refused:
    record = _current(state, change.group_id, change.topic_partition)
    held = None if record is None else record.find(change.lease_id)
    if record is None or held is None:
        told = "the lease is over: its records are acknowledged, or another has them, or the offset was reset"
        return Refused("lease_lost", told)
    return record, held


def _moved(take: TakeLease) -> Refused:
    return Refused("lease_moved", f"the range from {take.start} on is not free any more")


def _no_room(state: ClusterImage, principal: str) -> Refused | None:
    """Return why there is no room for one more partition with leases, after those were dropped that count no more."""
    if state.leases.count >= MAX_LEASED_PARTITIONS or _has_share(state, principal):
        for one in list(state.leases.records()):
            if _current(state, one.group_id, one.partition) is None:
                state.leases.remove(one)
    if state.leases.count >= MAX_LEASED_PARTITIONS:
        return Refused("overloaded", f"{MAX_LEASED_PARTITIONS} partitions of groups have leases, which is the most")
    if _has_share(state, principal):
        most = MAX_LEASED_PARTITIONS // SHARES
        return Refused("quota_exceeded", f"User:{principal} has leases in {most} partitions of groups")
    return None


def _has_share(state: ClusterImage, principal: str) -> bool:
    return principal != NO_OWNER and state.leases.count_of(principal) >= MAX_LEASED_PARTITIONS // SHARES


def _commit(state: ClusterImage, group_id: str, partition: TopicPartition, offset: int, now_ms: int) -> None:
    committed = CommittedOffset(Offset(offset), -1, "", state.stamp_ms(now_ms))
    state.groups.put_offsets(group_id, {partition: committed})
