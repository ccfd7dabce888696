"""The offsets that a group member names in a transaction, and the moment from which it may name none (S13)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.api.groups import GroupOffsetInfo, GroupPartition
from raftlog.client import ConsumedOffsets, ConsumedRange, GroupConsumer
from raftlog.errors import InvalidRequest

ONE, TWO, THREE = (GroupPartition("t", number, "ab" * 16) for number in range(3))


class Member(GroupConsumer):
    """A consumer that reads three partitions from the offsets 5, 5 and 0, of which the group knows the first two."""

    def __init__(self, *, enable_auto_commit: bool = False) -> None:
        super().__init__("127.0.0.1:1", "g", ["t"], enable_auto_commit=enable_auto_commit)
        self._session, self._generation = 1, 7
        self._membership: Any = SimpleNamespace(
            current=SimpleNamespace(member_id="m", incarnation=3), session=1, last_error=None
        )
        self.quorum: dict[GroupPartition, int] = {ONE: 5, TWO: 5}
        self._group: Any = SimpleNamespace(committed=self._ask)
        self.sought: dict[GroupPartition, int] = {}
        positions = {ONE: 5, TWO: 5, THREE: 0}
        self._reading: Any = SimpleNamespace(positions=positions, seek=self._seek)
        self.progress = self._progress
        self.progress.began = dict(positions)
        self.progress.committed = {ONE: 5, TWO: 5}

    async def _ask(self) -> list[GroupOffsetInfo]:
        return [GroupOffsetInfo(p.topic, p.topic_id, p.partition, offset) for p, offset in self.quorum.items()]

    def _seek(self, partition: GroupPartition, offset: int) -> None:
        self.sought[partition] = self._reading.positions[partition] = offset

    def hand_out(self, partition: GroupPartition, end: int) -> None:
        self._reading.positions[partition] = end

    def give_up(self, partition: GroupPartition) -> None:
        self._progress.forget([partition], self._reading.positions)
        del self._reading.positions[partition]


def named(offsets: ConsumedOffsets) -> dict[int, tuple[int, int]]:
    return {one.partition: (one.start, one.end) for one in offsets.ranges}


def test_what_is_named_goes_from_what_is_committed_to_the_position_s13() -> None:
    member = Member()
    member.hand_out(ONE, 9)
    offsets = member.consumed()
    assert (offsets.group, offsets.member_id, offsets.incarnation, offsets.generation) == ("g", "m", 3, 7)
    # The offset of "latest" is known nowhere else, so it is named although no record was returned.
    assert named(offsets) == {0: (5, 9), 2: (-1, 0)}
    member.consumed_is_committed(offsets)
    assert named(member.consumed()) == {}
    member.hand_out(ONE, 12)
    assert named(member.consumed()) == {0: (9, 12)}


def test_offsets_that_are_named_twice_go_from_the_first_start_to_the_last_end_s13() -> None:
    member = Member()
    member.hand_out(ONE, 9)
    before = member.consumed()
    member.hand_out(ONE, 11)
    member.hand_out(TWO, 6)
    assert named(member.consumed().over(before)) == {0: (5, 11), 1: (5, 6), 2: (-1, 0)}
    late = ConsumedOffsets("g", (ConsumedRange(ONE.topic_id, 0, 9, 11),))
    assert named(late.over(before))[0] == (5, 11)


def test_a_partition_taken_away_with_something_handed_out_spoils_it_until_read_anew_s13() -> None:
    """Its records are in the transaction's outputs, and its new owner reads them again."""
    member = Member()
    member.hand_out(ONE, 9)
    member.give_up(ONE)
    with pytest.raises(InvalidRequest) as caught:
        member.consumed()
    assert caught.value.code == "stale_generation" and "t/0" in caught.value.detail


@pytest.mark.parametrize("partition", [ONE, THREE])
def test_a_partition_taken_away_without_that_spoils_nothing(partition: GroupPartition) -> None:
    member = Member()
    member.give_up(partition)
    member.hand_out(TWO, 8)
    assert named(member.consumed())[1] == (5, 8)


async def test_after_an_abort_it_goes_back_to_what_the_quorum_knows_or_to_where_it_began_s13() -> None:
    member = Member()
    for partition, end in ((ONE, 9), (TWO, 5), (THREE, 4)):
        member.hand_out(partition, end)
    member.progress.left.add(ONE)
    member.quorum[ONE] = 7  # a predecessor's commit that was in flight (R5)
    await member.seek_to_committed()
    assert member.sought == {ONE: 7, THREE: 0}
    assert named(member.consumed()) == {2: (-1, 0)}
    assert member.progress.processed == {ONE: 7, TWO: 5, THREE: 0}


async def test_before_it_is_a_member_there_is_nothing_to_name_and_nowhere_to_go_back_to() -> None:
    member = Member()
    member._reading.positions.clear()
    member._membership.current = None
    member._group.committed = None  # any call fails
    assert member.consumed() == ConsumedOffsets("g", ())
    await member.seek_to_committed()


def test_who_commits_by_itself_or_is_no_member_is_told() -> None:
    member = Member()
    member._membership.session = 2
    with pytest.raises(InvalidRequest, match="not a member"):
        member.consumed()
    member = Member(enable_auto_commit=True)
    with pytest.raises(InvalidRequest, match="enable_auto_commit=False"):
        member.consumed()
