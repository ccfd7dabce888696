"""Leases in the image: of all who had a record, the last acknowledges it, and nothing is skipped (S8)."""

from __future__ import annotations

import random

import pytest

from metadata.commands.cluster import DeleteTopic, SetFeatureLevel
from metadata.commands.groups import Delete, OffsetToCommit, Reset
from metadata.commands.instances import ChangeGroupsAndInstances
from metadata.commands.leases import (
    MAX_LEASED_PARTITIONS,
    MAX_RANGES,
    AcknowledgeLease,
    BeginLeases,
    LeaseChange,
    RenewLease,
    TakeLease,
)
from metadata.commands.results import GroupsChanged, Refused
from metadata.image import leases as image_leases
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.records.leases import LeasedPartition
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import Offset, TopicPartition
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, GroupCluster, join

GROUP = "workers"


class Workers(GroupCluster):
    """A cluster at the newest feature level whose group `workers` reads by leases."""

    def __init__(self) -> None:
        super().__init__()
        self.do(SetFeatureLevel(FEATURE_LEVEL))

    def carry_out(self, change: LeaseChange, refused: str = "", principal: str = "") -> None:
        result = self.apply(ChangeGroupsAndInstances((change,), (principal,)))
        assert isinstance(result, GroupsChanged), result
        assert [one.code for one in result.refusals] == ([refused] if refused else []), result
        check(self.image)

    def take(
        self,
        lease: int,
        start: int,
        end: int,
        replaces: int = -1,
        *,
        partition: int = 0,
        refused: str = "",
        principal: str = "",
    ) -> None:
        change = TakeLease(TOPIC, partition, GROUP, lease, replaces, start, end, 30_000, NOW_MS)
        self.carry_out(change, refused, principal)

    def acknowledge(self, lease: int, below: int, *, refused: str = "") -> None:
        self.carry_out(AcknowledgeLease(TOPIC, 0, GROUP, lease, below, NOW_MS), refused)

    def committed(self, partition: int = 0) -> int | None:
        known = self.image.groups.offsets_of(GROUP).get(TopicPartition(TOPIC, partition))
        return None if known is None else known.offset

    def record(self) -> LeasedPartition | None:
        return self.image.leases.of_partition(GROUP, TopicPartition(TOPIC, 0))

    def ranges(self) -> list[tuple[int, int, int]]:
        record = self.record()
        return [] if record is None else [(one.start, one.end, one.lease_id) for one in record.ranges]

    def reset(self, offset: int) -> None:
        group = self.image.groups.by_id[GROUP]
        self.change(Reset(GROUP, group.epoch, NOW_MS, (OffsetToCommit(TOPIC, 0, Offset(offset)),)))


def test_the_committed_offset_is_the_lowest_that_is_not_acknowledged_s8() -> None:
    workers = Workers()
    workers.take(1, 5, 10)
    assert workers.committed() == 5, "the group begins where its first lease does"
    workers.take(2, 10, 20)
    workers.take(3, 20, 22)
    workers.acknowledge(2, 20)
    assert workers.committed() == 5
    workers.acknowledge(1, 7)
    assert workers.committed() == 7 and workers.ranges() == [(7, 10, 1), (20, 22, 3)]
    workers.acknowledge(1, 10)
    assert workers.committed() == 20, "what was acknowledged in between counts now"
    workers.acknowledge(3, 22)
    assert workers.committed() == 22 and workers.record() is None
    workers.take(4, 22, 30)
    workers.take(5, 23, 31, refused="lease_moved")


def test_a_group_begins_once() -> None:
    workers = Workers()
    workers.carry_out(BeginLeases(TOPIC, 0, GROUP, 7, NOW_MS))
    workers.carry_out(BeginLeases(TOPIC, 0, GROUP, 9, NOW_MS))
    workers.carry_out(BeginLeases(TOPIC, 99, GROUP, 9, NOW_MS), refused="unknown_partition")
    assert workers.committed() == 7, "a later beginning would skip records"
    workers.take(1, 9, 10, refused="lease_moved")
    workers.take(1, 7, 10)


def test_two_never_get_the_same_range() -> None:
    workers = Workers()
    workers.take(1, 0, 10)
    workers.take(2, 0, 10, refused="lease_moved")
    workers.take(3, 5, 12, refused="lease_moved")
    workers.take(1, 10, 12, refused="invalid_request")
    workers.take(4, 10, 12)
    workers.take(5, 15, 15, refused="invalid_request")
    assert workers.ranges() == [(0, 10, 1), (10, 12, 4)]


def test_a_lease_that_is_taken_over_is_fenced_s8() -> None:
    workers = Workers()
    workers.take(1, 0, 10)
    workers.take(2, 0, 4, replaces=1)
    assert workers.ranges() == [(0, 4, 2), (4, 10, 1)]
    workers.acknowledge(1, 2, refused="offset_out_of_range")
    workers.acknowledge(1, 10)
    assert workers.ranges() == [(0, 4, 2)], "what is left of its range is still the first holder's"
    workers.take(3, 0, 4, replaces=2)
    record = workers.record()
    assert record is not None and record.ranges[0].deliveries == 3
    workers.acknowledge(2, 4, refused="lease_lost")
    workers.take(4, 0, 4, replaces=2, refused="lease_moved")
    workers.take(4, 0, 5, replaces=3, refused="lease_moved")
    workers.take(4, 1, 4, replaces=3, refused="lease_moved")
    assert workers.committed() == 0
    workers.acknowledge(3, 4)
    assert workers.committed() == 10
    workers.acknowledge(3, 4, refused="lease_lost")


def test_a_lease_is_renewed_and_given_back() -> None:
    workers = Workers()
    workers.take(1, 0, 10)
    before = workers.record()
    workers.carry_out(RenewLease(TOPIC, 0, GROUP, 1, 60_000))
    after = workers.record()
    assert before is not None and after is not None
    assert after.ranges[0].lease_ms == 60_000 and after.ranges[0].renewed > before.ranges[0].renewed
    workers.carry_out(RenewLease(TOPIC, 0, GROUP, 1, 0))
    workers.carry_out(RenewLease(TOPIC, 0, GROUP, 2, 0), refused="lease_lost")
    workers.acknowledge(1, 10)
    assert workers.committed() == 10


def test_a_reset_ends_all_leases() -> None:
    workers = Workers()
    workers.take(1, 0, 10)
    workers.take(2, 10, 20)
    workers.reset(5)
    workers.acknowledge(1, 10, refused="lease_lost")
    workers.take(3, 20, 30, refused="lease_moved")
    workers.take(3, 0, 5, replaces=1, refused="lease_moved")
    workers.take(3, 5, 9)
    assert workers.ranges() == [(5, 9, 3)] and workers.committed() == 5
    workers.change(Delete(GROUP))
    workers.acknowledge(3, 9, refused="lease_lost")
    workers.take(4, 2, 9)
    assert workers.committed() == 2 and workers.ranges() == [(2, 9, 4)]


def test_a_reset_there_and_back_brings_everything_again_s8() -> None:
    """Acknowledgements behind the committed offset do not count after an operator's reset."""
    for offsets in ((7, 0), (0,)):
        workers = Workers()
        workers.take(1, 0, 1)
        workers.take(2, 1, 5)
        workers.acknowledge(2, 5)
        for offset in offsets:
            workers.reset(offset)
        assert workers.record() is None
        workers.acknowledge(1, 1, refused="lease_lost")
        workers.take(3, 0, 1)
        workers.acknowledge(3, 1)
        assert workers.committed() == 1


def test_a_group_with_members_is_theirs_s8() -> None:
    workers = Workers()
    workers.take(1, 0, 10)
    workers.change(join("m", group=GROUP))
    workers.acknowledge(1, 10, refused="group_not_empty")
    workers.take(2, 10, 20, refused="group_not_empty")
    workers.carry_out(RenewLease(TOPIC, 0, GROUP, 1, 0), refused="group_not_empty")
    assert workers.committed() == 0


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    for number in range(MAX_RANGES):
        workers.take(number, number, number + 1)
    workers.take(MAX_RANGES, MAX_RANGES, MAX_RANGES + 1, refused="overloaded")
    workers.take(1000, 0, 1, replaces=0)
    assert MAX_LEASED_PARTITIONS == image_leases.MAX_LEASED_PARTITIONS
    monkeypatch.setattr(image_leases, "MAX_LEASED_PARTITIONS", 1)
    workers.take(1, 0, 1, partition=1, refused="overloaded")
    workers.reset(7)
    workers.take(1, 0, 1, partition=1)
    assert workers.record() is None, "leases that count no more make room"


def test_one_principal_has_a_share_of_all_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    monkeypatch.setattr(image_leases, "MAX_LEASED_PARTITIONS", image_leases.SHARES)
    workers.take(1, 0, 1, principal="alice")
    workers.take(1, 0, 1, partition=1, principal="alice", refused="quota_exceeded")
    workers.take(1, 0, 1, partition=1, principal="bob")


def test_unknown_partitions_and_deleted_topics_have_none() -> None:
    workers = Workers()
    workers.take(1, 0, 10, partition=99, refused="unknown_partition")
    workers.take(1, 0, 10)
    workers.do(DeleteTopic(TOPIC))
    assert workers.image.leases.count == 0
    workers.acknowledge(1, 10, refused="lease_lost")


def test_leases_need_their_feature_level() -> None:
    cluster = GroupCluster()
    change = TakeLease(TOPIC, 0, GROUP, 1, -1, 0, 1, 1_000, NOW_MS)
    refused = cluster.apply(ChangeGroupsAndInstances((change,), ("",)))
    assert isinstance(refused, Refused) and refused.code == "unsupported_version"


def test_leases_survive_in_a_snapshot_and_a_view_follows_it() -> None:
    workers = Workers()
    workers.take(1, 0, 10, principal="alice")
    workers.take(2, 0, 4, replaces=1)
    restored = decode_snapshot(encode_snapshot(workers.image))
    assert list(restored.leases.records()) == list(workers.image.leases.records())
    assert encode_snapshot(restored) == encode_snapshot(workers.image)
    view = ClusterView()
    view.on_events(workers.image.index, diff(ClusterImage(), workers.image))
    assert list(view.leases.records()) == list(workers.image.leases.records())
    before = decode_snapshot(encode_snapshot(workers.image))
    workers.acknowledge(2, 4)
    workers.acknowledge(1, 10)
    view.on_events(workers.image.index, diff(before, workers.image))
    assert view.leases.count == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_record_is_acknowledged_by_the_last_who_had_it_s8(seed: int) -> None:
    """Workers with any clocks take, lose, acknowledge and reset; a simple model keeps who had each record last."""
    rng, workers = random.Random(seed), Workers()
    last: dict[int, int] = {}
    acknowledged: set[int] = set()
    held: dict[int, tuple[int, int]] = {}
    end = 0
    for lease in range(1, 201):
        known = workers.ranges()
        move = rng.random()
        if move < 0.4 and len(known) < MAX_RANGES:
            size = rng.randint(1, 5)
            workers.take(lease, end, end + size)
            held[lease] = (end, end + size)
            last.update(dict.fromkeys(range(end, end + size), lease))
            end += size
        elif move < 0.6 and known and len(known) < MAX_RANGES:
            start, stop, replaced = rng.choice(known)
            stop = rng.randint(start + 1, stop)
            workers.take(lease, start, stop, replaces=replaced)
            held[lease] = (start, stop)
            last.update(dict.fromkeys(range(start, stop), lease))
        elif held:
            worker = rng.choice(list(held))
            start, stop = held[worker]
            below = rng.randint(start, stop)
            result = workers.apply(
                ChangeGroupsAndInstances((AcknowledgeLease(TOPIC, 0, GROUP, worker, below, NOW_MS),), ("",))
            )
            assert isinstance(result, GroupsChanged)
            if not result.refusals:
                # Records that another lease has taken over are that one's to acknowledge.
                acknowledged |= {offset for offset in range(start, below) if last[offset] == worker}
        committed = workers.committed() or 0
        open_ = [offset for offset in range(end) if offset not in acknowledged]
        assert committed == (open_[0] if open_ else end), "skipped, or behind"
